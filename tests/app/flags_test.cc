#include "app/flags.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::app {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// The names of the flags that a help text lists, each as often as it is listed.
std::vector<std::string> ListedFlags(const std::string& help) {
  std::vector<std::string> names;
  for (absl::string_view line : absl::StrSplit(help, '\n')) {
    if (!absl::StartsWith(line, "  --")) continue;
    line.remove_prefix(4);
    names.emplace_back(line.substr(0, line.find(' ')));
  }
  return names;
}

class RoleHelpTest : public ::testing::TestWithParam<std::string> {};

TEST_P(RoleHelpTest, ShowsAtMost25Flags) {
  const auto flags = ListedFlags(Help(GetParam(), HelpScope::kCommon));
  EXPECT_GE(flags.size(), 3u);
  EXPECT_LE(flags.size(), 25u);
}

TEST_P(RoleHelpTest, HelpAllContainsTheCommonFlags) {
  const auto common = ListedFlags(Help(GetParam(), HelpScope::kCommon));
  const auto all = ListedFlags(Help(GetParam(), HelpScope::kAll));
  for (const std::string& flag : common) EXPECT_THAT(all, Contains(flag));
}

TEST_P(RoleHelpTest, ListsNoFlagTwice) {
  const auto all = ListedFlags(Help(GetParam(), HelpScope::kAll));
  EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), all.size());
}

TEST_P(RoleHelpTest, SaysHowManyFlagsItDoesNotShow) {
  const std::string help = Help(GetParam(), HelpScope::kCommon);
  const size_t hidden =
      ListedFlags(Help(GetParam(), HelpScope::kAll)).size() - ListedFlags(help).size();
  const std::string line =
      std::to_string(hidden) + " more flags: specfabric " + GetParam() + " --help=all\n";
  EXPECT_EQ(absl::StrContains(help, line), hidden > 0);
}

INSTANTIATE_TEST_SUITE_P(Roles, RoleHelpTest, ::testing::ValuesIn(RoleNames()),
                         [](const auto& role) { return role.param; });

TEST(FlagsTest, OverviewListsEveryRole) {
  for (const std::string& role : RoleNames()) EXPECT_THAT(Overview(), HasSubstr("  " + role));
}

}  // namespace
}  // namespace specfabric::app
