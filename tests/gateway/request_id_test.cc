#include "gateway/request_id.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::gateway {
namespace {

using ::testing::MatchesRegex;

TEST(RequestIdTest, AClientsIdIsKept) {
  for (const std::string& given :
       {std::string("a"), std::string("550e8400-e29b-41d4-a716-446655440000"),
        std::string("!\"#/~"), std::string(kMaxRequestId, 'x')}) {
    EXPECT_EQ(RequestIdOf(given), given);
  }
}

TEST(RequestIdTest, OneThatMayNotStandInALogIsReplaced) {
  for (const std::string& given :
       {std::string(), std::string(kMaxRequestId + 1, 'x'), std::string("a b"), std::string("a\tb"),
        std::string("\xc3\xa9"), std::string("a\x7f"), std::string("a\0b", 3)}) {
    const std::string made = RequestIdOf(given);
    EXPECT_THAT(made, MatchesRegex("req-[0-9a-f]+")) << given;
    EXPECT_EQ(made.size(), 36u);
    EXPECT_NE(made, RequestIdOf(given));
  }
}

}  // namespace
}  // namespace specfabric::gateway
