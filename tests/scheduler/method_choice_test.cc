// Which verification method requests get that leave it to the target.

#include "scheduler/policy/method_choice.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "tests/scheduler/learned_step_time.h"

namespace specfabric::scheduler {
namespace {

using speculation::VerificationMethod;

constexpr uint32_t kLossless = 0b0111, kAll = 0b1111;
constexpr base::Nanos kStep = 10 * base::kMillisecond;

// Sequences one after the other, whose rounds emit as many tokens as `tokens` says.
struct Target {
  std::function<double(VerificationMethod)> tokens;
  StepTime step = Learned([](int32_t, int64_t) { return 10e6; }, {1, 8, 64}, 600, 0);
  MethodChoice choice = {};
  float temperature = 1;
  int32_t running = 0;

  VerificationMethod Next(uint32_t allowed = kLossless, base::Nanos waited = 0) {
    const VerificationMethod method = choice.Choose(allowed, temperature, running, step);
    constexpr int32_t kRounds = 50;
    choice.OnEnd(method, temperature, running,
                 {.rounds = kRounds,
                  .tokens = static_cast<int64_t>(kRounds * tokens(method)),
                  .rows = 6 * kRounds,
                  .waited = kRounds * waited});
    return method;
  }
  // The share of each method of so many sequences.
  std::array<double, speculation::kVerificationMethods> Shares(int sequences) {
    std::array<double, speculation::kVerificationMethods> shares = {};
    for (int i = 0; i < sequences; ++i) {
      shares[static_cast<size_t>(Next())] += 1.0 / sequences;
    }
    return shares;
  }
};

std::function<double(VerificationMethod)> Tokens(double coupled, double rejection,
                                                 double traversal) {
  return [=](VerificationMethod method) {
    return method == VerificationMethod::kCoupled     ? coupled
           : method == VerificationMethod::kRejection ? rejection
                                                      : traversal;
  };
}

double Share(const std::array<double, speculation::kVerificationMethods>& shares,
             VerificationMethod method) {
  return shares[static_cast<size_t>(method)];
}

TEST(MethodChoiceTest, UsesTheOneThatYieldsTheMostAndTriesTheOthers) {
  Target target{Tokens(2, 2.4, 3)};
  target.Shares(20);
  const auto shares = target.Shares(1000);
  EXPECT_GT(Share(shares, VerificationMethod::kTraversal), 0.85);
  EXPECT_GT(Share(shares, VerificationMethod::kCoupled), 0.01);
  EXPECT_EQ(Share(shares, VerificationMethod::kRejection), 0) << "traversal is allowed";
}

TEST(MethodChoiceTest, TrialsCostLittle) {
  Target target{Tokens(3, 1.2, 2.7)};
  target.Shares(20);
  const auto shares = target.Shares(2000);
  double lost = 0;
  for (int m = 0; m < 3; ++m) {
    lost += shares[m] * (1 - target.tokens(static_cast<VerificationMethod>(m)) / 3);
  }
  EXPECT_LT(lost, 0.015);
}

TEST(MethodChoiceTest, WaitsAndRowsCount) {
  Target target{Tokens(2, 2, 2)};
  target.tokens = [](VerificationMethod) { return 2.0; };
  for (int i = 0; i < 200; ++i) {
    const auto method = target.choice.Choose(kLossless, 1, 0, target.step);
    const bool coupled = method == VerificationMethod::kCoupled;
    target.choice.OnEnd(
        method, 1, 0, {.rounds = 10, .tokens = 24, .rows = 40, .waited = coupled ? 0 : 10 * kStep});
  }
  EXPECT_GT(Share(target.Shares(20), VerificationMethod::kCoupled), 0.7);
}

// While its trees are still learned, the best seems worse than another.
TEST(MethodChoiceTest, TheFirstSequencesAreForgottenSoon) {
  Target target{Tokens(2, 2.8, 2.7)};
  target.Shares(8);
  target.tokens = Tokens(3, 2.8, 2.7);
  target.Shares(60);
  EXPECT_GT(Share(target.Shares(200), VerificationMethod::kCoupled), 0.65);
}

TEST(MethodChoiceTest, FollowsAChange) {
  Target target{Tokens(3, 2, 2)};
  target.Shares(200);
  target.tokens = Tokens(2, 2, 3);
  target.Shares(300);
  EXPECT_GT(Share(target.Shares(500), VerificationMethod::kTraversal), 0.8);
}

TEST(MethodChoiceTest, TemperaturesAndLoadsAreKnownApart) {
  Target target{Tokens(3, 2, 2)};
  target.Shares(100);
  target.temperature = 0.3f;
  target.tokens = Tokens(2, 2, 3);
  target.Shares(100);
  target.running = 63;
  target.tokens = Tokens(3, 2, 2);
  target.Shares(300);
  EXPECT_GT(Share(target.Shares(100), VerificationMethod::kCoupled), 0.8);
  target.running = 0;
  EXPECT_EQ(target.choice.Choose(kLossless, 0.3f, 0, target.step), VerificationMethod::kTraversal);
  EXPECT_EQ(target.choice.Choose(kLossless, 1, 0, target.step), VerificationMethod::kCoupled);
}

TEST(MethodChoiceTest, OnlyLosslessOnesThatAreAllowed) {
  Target target{Tokens(1, 2, 3)};
  for (int i = 0; i < 100; ++i) EXPECT_NE(target.Next(kAll), VerificationMethod::kTypical);
  for (int i = 0; i < 100; ++i) {
    EXPECT_NE(target.Next(0b0011), VerificationMethod::kTraversal);
  }
  EXPECT_EQ(target.Next(0b1000), VerificationMethod::kCoupled) << "none is left";
}

// Many are added before the first has ended.
TEST(MethodChoiceTest, ABurstIsNotAllOfOneUnknownMethod) {
  Target target{Tokens(3, 2, 2)};
  std::array<int, speculation::kVerificationMethods> chosen = {};
  for (int i = 0; i < 64; ++i) {
    ++chosen[static_cast<size_t>(target.choice.Choose(kLossless, 1, i, target.step))];
  }
  EXPECT_GT(chosen[0], 32);
  EXPECT_GT(chosen[2], 0);
}

}  // namespace
}  // namespace specfabric::scheduler
