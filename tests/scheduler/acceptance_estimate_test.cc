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
