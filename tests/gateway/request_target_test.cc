#include "gateway/request_target.h"

#include <string>
#include <utility>
#include <variant>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::gateway {
namespace {

using ::testing::HasSubstr;

// The path, or "400: " and the error message.
std::string PathOrError(std::string_view target) {
  const Parsed<std::string> path = PathOf(target);
  if (const auto* error = std::get_if<ApiError>(&path)) {
    return std::to_string(error->status) + ": " + error->message;
  }
  return std::get<std::string>(path);
}

TEST(RequestTargetTest, Paths) {
  const std::pair<const char*, const char*> cases[] = {
      {"/", "/"},
      {"/livez", "/livez"},
      {"/livez?verbose=1", "/livez"},
      {"/v1/models/Org%2FMy-Model", "/v1/models/Org/My-Model"},
      {"/v1/models/Org%2fMy%20Model", "/v1/models/Org/My Model"},
      {"/v1/models/a%3Fb?c", "/v1/models/a?b"},
      {"/v1/models/%E6%BC%A2", "/v1/models/\xE6\xBC\xA2"},
      {"/a%2541", "/a%41"},  // decoded once
      {"/a+b", "/a+b"},      // a plus means a space only in queries
      {"//livez", "//livez"},
      {"/livez#fragment", "/livez"},
      {"http://host/livez", "/livez"},
      {"HTTP://host:8000/v1/models?x=/y", "/v1/models"},
      {"https://[::1]:8000/livez", "/livez"},
      {"http://host", "/"},
      {"http://host?x", "/"},
  };
  for (const auto& [target, path] : cases) EXPECT_EQ(PathOrError(target), path) << target;
}

TEST(RequestTargetTest, TargetsWithoutAPath) {
  for (const char* target : {"", "*", "livez", "host:443", "http:///livez", "http://", "ftp://h/x",
                             "?x", "http:/livez"}) {
    EXPECT_THAT(PathOrError(target), HasSubstr("400: the request target is '")) << target;
  }
}

TEST(RequestTargetTest, InvalidEscapes) {
  for (const char* target : {"/%", "/a%2", "/%zz", "/%2", "/%%41", "/%4/"}) {
    EXPECT_THAT(PathOrError(target), HasSubstr("two hexadecimal digits")) << target;
  }
  EXPECT_THAT(PathOrError("/v1/models/%4z"), HasSubstr("'%4z' at byte 11"));
}

TEST(RequestTargetTest, ControlCharacters) {
  EXPECT_THAT(PathOrError("/a%00b"), HasSubstr("0x00"));
  EXPECT_THAT(PathOrError("/a%0a"), HasSubstr("0x0a"));
  EXPECT_THAT(PathOrError("/a%7F"), HasSubstr("0x7f"));
}

TEST(RequestTargetTest, ErrorsCutLongTargets) {
  EXPECT_LT(PathOrError(std::string(15000, 'x')).size(), 300u);
  EXPECT_EQ(ShownTarget("a\n\xE6"), "a%0A%E6");
}

}  // namespace
}  // namespace specfabric::gateway
