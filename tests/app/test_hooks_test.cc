#include "app/test_hooks.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::app {
namespace {

TEST(TestHooksTest, WithoutAnyEverythingIsAsServed) {
  for (const char* text : {"", ";", " ; "}) {
    const auto hooks = ParseTestHooks(text);
    ASSERT_TRUE(hooks.ok()) << hooks.status();
    EXPECT_EQ(hooks->drafter_choice, speculation::ChoicePolicy::kHedge);
    EXPECT_EQ(hooks->ahead, draft::AheadPolicy::kLikeliest);
    EXPECT_FALSE(hooks->faults.any());
  }
}

TEST(TestHooksTest, SeveralAreSeparatedBySemicolons) {
  const auto hooks = ParseTestHooks("drafter_choice=ucb1;ahead=uniform;faults=drop=.25,seed=5");
  ASSERT_TRUE(hooks.ok()) << hooks.status();
  EXPECT_EQ(hooks->drafter_choice, speculation::ChoicePolicy::kUcb1);
  EXPECT_EQ(hooks->ahead, draft::AheadPolicy::kUniform);
  EXPECT_EQ(hooks->faults.drop, .25);
  EXPECT_EQ(hooks->faults.seed, 5u);
}

TEST(TestHooksTest, ARefusalNamesTheHookAndWhatIsAllowed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"drafter_choice=oracle", "drafter_choice=oracle: allowed are hedge, ucb1, thompson and"},
      {"drafter_choice", "drafter_choice: allowed are hedge"},
      {"ahead=off", "ahead=off: allowed are likeliest, geometric and uniform"},
      {"faults=drop=2", "faults=drop=2: 'drop=2'"},
      {"ahead=uniform;fault=drop=.1", "fault=drop=.1: allowed are drafter_choice, ahead and"},
  };
  for (const auto& [text, said] : cases) {
    const auto hooks = ParseTestHooks(text);
    EXPECT_TRUE(absl::IsInvalidArgument(hooks.status())) << text;
    EXPECT_THAT(std::string(hooks.status().message()),
                ::testing::StartsWith("SPECFABRIC_TEST_HOOKS: " + said));
  }
}

}  // namespace
}  // namespace specfabric::app
