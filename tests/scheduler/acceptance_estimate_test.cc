// The chance that draft tokens are accepted.

#include <cmath>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/policy/acceptance_estimate.h"
#include "tests/scheduler/chain.h"

namespace specfabric::scheduler {
namespace {

using speculation::SiblingDraw;
using speculation::TokenTree;
using speculation::VerificationMethod;
using testing::ElementsAre;
using testing::FloatNear;
using testing::IsEmpty;
using testing::Pointwise;

std::vector<float> PathChances(const AcceptanceEstimate& estimate, VerificationMethod verification,
                               const speculation::Draft& draft) {
  std::vector<float> chances;
  estimate.PathChances(verification, draft, &chances);
  return chances;
}

TEST(AcceptanceEstimateTest, StartsFromTheDraftersScoresAndDecaysBackToThem) {
  AcceptanceEstimate estimate;
  const speculation::Draft draft = {.tree = Chain(2, std::log(0.9f))};
  EXPECT_THAT(PathChances(estimate, VerificationMethod::kCoupled, draft),
              Pointwise(FloatNear(0.01), {0.9f, 0.81f}));
  std::mt19937 random(2);
  for (int i = 0; i < 3000; ++i) {
    std::vector<int32_t> path;
    while (path.size() < 2 && random() % 10 < 4) path.push_back(static_cast<int>(path.size()) + 1);
    estimate.Observe(VerificationMethod::kCoupled, draft, path);
  }
  // The second is only tried if the first was accepted.
  EXPECT_THAT(PathChances(estimate, VerificationMethod::kCoupled, draft),
              Pointwise(FloatNear(0.05), {0.4f, 0.16f}));
  // Other verification methods are estimated apart.
  EXPECT_NEAR(PathChances(estimate, VerificationMethod::kTypical, draft)[0], 0.9, 0.01);
  for (int i = 0; i < 500; ++i) estimate.Decay(VerificationMethod::kCoupled, 1);
  EXPECT_NEAR(PathChances(estimate, VerificationMethod::kCoupled, draft)[0], 0.9, 0.01);
}

// What a long repetition says of itself is 1, and many sequences at once would try all of theirs.
TEST(AcceptanceEstimateTest, NgramLookupIsBelievedLessUntilItWasTried) {
  AcceptanceEstimate estimate;
  constexpr auto kMethod = VerificationMethod::kCoupled;
  speculation::Draft sure = {.tree = Chain(2, std::log(0.9999f))};
  EXPECT_GT(PathChances(estimate, kMethod, sure)[1], 0.99) << "a drafter's score";
  sure.sources.assign(3, {.proposed_by = speculation::ProposalSource::kNgramLookup});
  speculation::Draft unsure = {.tree = Chain(1, std::log(0.5f)), .sources = sure.sources};
  EXPECT_LT(PathChances(estimate, kMethod, sure)[0], 0.95);
  EXPECT_NEAR(PathChances(estimate, kMethod, unsure)[0], 0.5, 0.01);
  for (int i = 0; i < 200; ++i) estimate.Observe(kMethod, sure, {1, 2});
  EXPECT_GT(PathChances(estimate, kMethod, sure)[1], 0.98);
  // As long as a few steps do not change that.
  for (int step = 0; step < 50; ++step) estimate.DecayNgramLookup();
  EXPECT_GT(PathChances(estimate, kMethod, sure)[1], 0.98);
  for (int step = 0; step < 20000; ++step) estimate.DecayNgramLookup();
  EXPECT_LT(PathChances(estimate, kMethod, sure)[0], 0.95);
}

TEST(AcceptanceEstimateTest, DrawnTokensAreEstimatedByPositionAlone) {
  AcceptanceEstimate estimate;
  speculation::Draft draft = {.tree = Chain(2, -0.1f), .draw = SiblingDraw::kWithoutReplacement};
  for (int i = 0; i < 500; ++i) {
    estimate.Observe(VerificationMethod::kRejection, draft, {1});
  }
  const auto chances = PathChances(estimate, VerificationMethod::kRejection, draft);
  EXPECT_GT(chances[0], 0.95);
  EXPECT_LT(chances[1], 0.05);
  for (float& score : draft.tree.scores) score = -9;
  EXPECT_EQ(PathChances(estimate, VerificationMethod::kRejection, draft), chances);
}

}  // namespace
}  // namespace specfabric::scheduler
