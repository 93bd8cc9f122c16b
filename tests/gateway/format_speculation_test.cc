#include "gateway/format_speculation.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace specfabric::gateway {
namespace {

Json Of(const schemas::Speculation& totals) {
  return MetricsJson({.speculation = totals})["speculative_decoding"];
}

// The numbers of the example in vLLM's documentation: 43 rounds with three draft tokens each.
TEST(FormatSpeculationTest, RoundsByAcceptedDraftTokens) {
  const Json json = Of({.rounds = 50,
                        .drafted = 129,
                        .accepted = 10,
                        .accepted_at = {4, 3, 3},
                        .drafted_rounds = 43});
  EXPECT_EQ(json["acceptance_histogram"], Json({39, 1, 0, 3}));
  EXPECT_EQ(json["num_spec_steps"], 43) << "rounds without a draft do not count";
  EXPECT_EQ(json["num_accepted_draft_tokens"], 10);
  EXPECT_EQ(json["num_draft_tokens"], 129);
  EXPECT_DOUBLE_EQ(json["mean_acceptance_length"], 1 + 10.0 / 43);
  EXPECT_DOUBLE_EQ(json["draft_acceptance_rate"], 10.0 / 129);
  EXPECT_EQ(json.size(), 6u);
}

TEST(FormatSpeculationTest, WithoutDraftsAllCountsAreZero) {
  const Json json = Of({.rounds = 9});
  EXPECT_EQ(json["acceptance_histogram"], Json::array({0}));
  EXPECT_EQ(json["num_spec_steps"], 0);
  EXPECT_EQ(json["num_accepted_draft_tokens"], 0);
  EXPECT_EQ(json["num_draft_tokens"], 0);
  EXPECT_EQ(json["mean_acceptance_length"], 1.0);
  EXPECT_EQ(json["draft_acceptance_rate"], 0.0);
}

TEST(FormatSpeculationTest, TotalsThatContradictEachOtherGiveNoNegativeCount) {
  const Json json = Of({.drafted = 4, .accepted = 1, .accepted_at = {1, 5, 2}});
  EXPECT_EQ(json["acceptance_histogram"], Json({0, 0, 3, 2}));
  EXPECT_EQ(json["num_spec_steps"], 5);
  EXPECT_EQ(json["num_accepted_draft_tokens"], 12);
}

TEST(FormatSpeculationTest, SeveralChoicesAreNotOneSequence) {
  const Json json = MetricsJson({.speculation = {.drafted = 4, .drafted_rounds = 1}, .choices = 2});
  EXPECT_TRUE(json["speculative_decoding"].is_null());
}

}  // namespace
}  // namespace specfabric::gateway
