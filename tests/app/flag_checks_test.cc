#include "app/flag_checks.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::app {
namespace {

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(DurationFlagTest, NeedsAUnitExceptFor0) {
  const std::vector<std::pair<std::string, absl::Duration>> cases = {
      {"50ms", absl::Milliseconds(50)}, {"1.5s", absl::Milliseconds(1500)},
      {"1m30s", absl::Seconds(90)},     {"20us", absl::Microseconds(20)},
      {"2h", absl::Hours(2)},           {"0.5ns", absl::Nanoseconds(0.5)},
      {"0", absl::ZeroDuration()},      {"24h", absl::Hours(24)},
  };
  for (const auto& [text, duration] : cases) {
    const auto parsed = ParseDurationFlag("wait", text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status();
    EXPECT_EQ(*parsed, duration) << text;
  }
}

TEST(DurationFlagTest, RefusesInOneLineWhatIsNoDurationInRange) {
  for (const char* text : {"", " ", "5", "-5s", "-1ns", "25h", "inf", "1e9s", "s", "5 s", "5sec",
                           "99999999999999999999999s", "1d", "nan", "0x5s"}) {
    const auto parsed = ParseDurationFlag("wait", text);
    EXPECT_TRUE(absl::IsInvalidArgument(parsed.status())) << text;
    EXPECT_EQ(Message(parsed.status()),
              absl::StrCat("--wait=", text,
                           ": allowed are durations from 0 to 24h with their unit, such as 50ms "
                           "or 5s"));
  }
}

TEST(DurationFlagTest, TheRangeIsTheFlags) {
  const DurationRange range = {.least = absl::Milliseconds(100), .most = absl::Minutes(1)};
  EXPECT_TRUE(ParseDurationFlag("wait", "100ms", range).ok());
  EXPECT_TRUE(ParseDurationFlag("wait", "60s", range).ok());
  for (const char* text : {"0", "99ms", "61s"}) {
    EXPECT_THAT(Message(ParseDurationFlag("wait", text, range).status()),
                ::testing::HasSubstr("durations from 100ms to 1m"))
        << text;
  }
}

TEST(DurationFlagTest, SeveralAreParsedUpToTheFirstRefusal) {
  base::Nanos first = 0, second = 0;
  EXPECT_TRUE(ParseDurationFlags({{"first", "5ms", &first}, {"second", "2s", &second}}).ok());
  EXPECT_EQ(first, 5 * base::kMillisecond);
  EXPECT_EQ(second, 2 * base::kSecond);
  const absl::Status refused =
      ParseDurationFlags({{"first", "5", &first}, {"second", "-2s", &second}});
  EXPECT_THAT(Message(refused), ::testing::StartsWith("--first=5: allowed are"));
}

TEST(SizeFlagTest, UnitsAreBinary) {
  const std::vector<std::pair<std::string, uint64_t>> cases = {
      {"8", 8}, {"64KiB", 64 << 10}, {"3MiB", 3 << 20}, {"1GiB", 1 << 30}};
  for (const auto& [text, size] : cases) {
    const auto parsed = ParseSizeFlag("size", text, 1, 1 << 30);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status();
    EXPECT_EQ(*parsed, size) << text;
  }
}

TEST(SizeFlagTest, RefusesInOneLineWhatIsNoSizeInRange) {
  for (const char* text : {"", "0", "-1", "-1GiB", "2GiB", "KiB", "1.5GiB", "1GB", "1073741825",
                           "18446744073709551615GiB", "99999999999999999999999"}) {
    const auto parsed = ParseSizeFlag("size", text, 1, 1 << 30);
    EXPECT_TRUE(absl::IsInvalidArgument(parsed.status())) << text;
    EXPECT_EQ(Message(parsed.status()),
              absl::StrCat("--size=", text,
                           ": allowed are sizes from 1 to 1073741824 bytes, such as 4096, 64KiB "
                           "or 1GiB"));
  }
}

}  // namespace
}  // namespace specfabric::app
