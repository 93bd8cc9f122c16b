#include "gateway/http_date.h"

#include <ctime>

#include "gtest/gtest.h"

namespace specfabric::gateway {
namespace {

TEST(HttpDateTest, FormOfRfc9110) {
  EXPECT_EQ(HttpDate(784111777), "Sun, 06 Nov 1994 08:49:37 GMT");
  EXPECT_EQ(HttpDate(0), "Thu, 01 Jan 1970 00:00:00 GMT");
  EXPECT_EQ(HttpDate(951782400), "Tue, 29 Feb 2000 00:00:00 GMT");
  EXPECT_EQ(HttpDate(4102444799), "Thu, 31 Dec 2099 23:59:59 GMT");
}

TEST(HttpDateTest, TheHeaderIsThePresentTime) {
  const std::time_t before = std::time(nullptr);
  const std::string& text = DateHeader();
  const std::time_t after = std::time(nullptr);
  bool found = false;
  for (std::time_t time = before; time <= after; ++time) found = found || HttpDate(time) == text;
  EXPECT_TRUE(found) << text;
}

}  // namespace
}  // namespace specfabric::gateway
