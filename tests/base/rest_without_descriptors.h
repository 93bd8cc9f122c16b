#ifndef SPECFABRIC_TESTS_BASE_REST_WITHOUT_DESCRIPTORS_H_
#define SPECFABRIC_TESTS_BASE_REST_WITHOUT_DESCRIPTORS_H_

// What every HTTP server of this process does while it has no file descriptor left.

#include <array>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/log_capture.h"
#include "tests/base/no_descriptors.h"

namespace specfabric::base {

// The server at "127.0.0.1:port" takes next to no CPU while clients wait that it cannot accept,
// logs that once, and answers them as soon as there are descriptors again.
inline void ExpectRestWithoutDescriptors(const std::string& address) {
  const LogCapture log;
  const std::array<LateClient, 3> waiting;
  {
    const NoDescriptors none;
    for (const LateClient& one : waiting) ASSERT_TRUE(one.Connect(address));
    EXPECT_LT(CpuSecondsOfASecond(), kIdleCpuSeconds);
  }
  for (const LateClient& one : waiting) {
    EXPECT_THAT(one.Ask("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"),
                ::testing::StartsWith("HTTP/1.1 200 "));
  }
  EXPECT_EQ(log.Count("cannot accept connections on " + address), 1) << log.text();
  EXPECT_EQ(log.Count("Too many open files"), 1) << log.text();
}

}  // namespace specfabric::base

#endif  // SPECFABRIC_TESTS_BASE_REST_WITHOUT_DESCRIPTORS_H_
