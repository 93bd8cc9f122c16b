#include "speculation/drafter_choice.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::speculation {
namespace {

using testing::HasSubstr;

std::vector<std::optional<double>> All(const std::vector<double>& rewards) {
  return {rewards.begin(), rewards.end()};
}

struct Played {
  double reward = 0;           // of the chosen ones, on average
  std::vector<double> chosen;  // part of the rounds
};

// Rounds whose rewards are 0 or 1 with the given chances.
Played Play(DrafterChoice* choice, const std::vector<double>& chances, int rounds,
            std::mt19937* random) {
  Played played = {.chosen = std::vector<double>(chances.size(), 0)};
  for (int i = 0; i < rounds; ++i) {
    std::vector<double> rewards;
    for (double chance : chances) {
      rewards.push_back((*random)() < chance * 4294967296.0 ? 1 : 0);
    }
    choice->Foresee(chances);
    const DrafterChoice::Round round = choice->Next();
    played.reward += rewards[round.drafter] / rounds;
    played.chosen[round.drafter] += 1.0 / rounds;
    choice->Rewarded(round.drafter, rewards[round.drafter]);
    if (round.score_all) choice->Scored(All(rewards));
  }
  return played;
}

class EachPolicyTest : public testing::TestWithParam<ChoicePolicy> {
 protected:
  bool learns() const { return GetParam() != ChoicePolicy::kFixed; }
  ChoiceOptions options() const {
    return {.policy = GetParam(), .fixed = 1, .memory = 200, .seed = 5};
  }
};

TEST_P(EachPolicyTest, SettlesOnTheBest) {
  std::mt19937 random(1);
  DrafterChoice choice(options(), 3);
  Play(&choice, {0.3, 0.8, 0.5}, 1000, &random);
  const Played played = Play(&choice, {0.3, 0.8, 0.5}, 3000, &random);
  EXPECT_GT(played.chosen[1], 0.8);
  EXPECT_GT(choice.Shares()[1], 0.7);
}

TEST_P(EachPolicyTest, FollowsWhereTheBestChanges) {
  if (!learns()) return;
  std::mt19937 random(2);
  DrafterChoice choice(options(), 2);
  Play(&choice, {0.8, 0.4}, 2000, &random);
  EXPECT_GT(choice.Shares()[0], 0.7);
  Play(&choice, {0.4, 0.8}, 2000, &random);
  EXPECT_LT(choice.Shares()[0], 0.3) << "what stopped paying has lost its share";
  Play(&choice, {0.8, 0.4}, 2000, &random);
  EXPECT_GT(choice.Shares()[0], 0.7) << "and what gets better regains it";
}

TEST_P(EachPolicyTest, ChoosesNoneThatCannot) {
  std::mt19937 random(3);
  DrafterChoice choice(options(), 3);
  Play(&choice, {0.1, 0.9, 0.5}, 300, &random);
  for (int i = 0; i < 200; ++i) {
    EXPECT_NE(choice.Next({true, false, true}).drafter, 1);
    EXPECT_EQ(choice.Next({false, false, true}).drafter, 2);
  }
}

TEST_P(EachPolicyTest, TheSameSeedChoosesTheSame) {
  DrafterChoice one(options(), 4), other(options(), 4);
  std::mt19937 random(4), same(4);
  for (int i = 0; i < 20; ++i) {
    const std::vector<double> chances = {0.2, 0.4, 0.6, 0.5};
    EXPECT_EQ(Play(&one, chances, 10, &random).chosen, Play(&other, chances, 10, &same).chosen);
  }
}

TEST_P(EachPolicyTest, SharesSumToOne) {
  DrafterChoice choice(options(), 2);
  std::mt19937 random(6);
  Play(&choice, {0.5, 0.6}, 50, &random);
  choice.AddDrafter();
  Play(&choice, {0.5, 0.6, 0.9}, 50, &random);
  const std::vector<double> shares = choice.Shares();
  EXPECT_EQ(shares.size(), 3);
  EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1, 1e-12);
}

TEST_P(EachPolicyTest, ALateComerIsFound) {
  if (!learns()) return;
  std::mt19937 random(7);
  DrafterChoice choice(options(), 1);
  Play(&choice, {0.4}, 500, &random);
  choice.AddDrafter();
  Play(&choice, {0.4, 0.9}, 2000, &random);
  EXPECT_GT(choice.Shares()[1], 0.7);
}

TEST_P(EachPolicyTest, HasAName) { EXPECT_EQ(*ParseChoicePolicy(Name(GetParam())), GetParam()); }

INSTANTIATE_TEST_SUITE_P(Policies, EachPolicyTest,
                         testing::Values(ChoicePolicy::kHedge, ChoicePolicy::kUcb1,
                                         ChoicePolicy::kThompson, ChoicePolicy::kFixed,
                                         ChoicePolicy::kOracle),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST(DrafterChoiceTest, AnUnknownPolicyIsRefused) {
  EXPECT_THAT(std::string(ParseChoicePolicy("best").status().message()),
              HasSubstr("'best': allowed are hedge"));
}

// Freund and Schapire's bound, for rewards that an adversary makes as bad as it can: the expected
// loss, which the weights say, is at most the best drafter's + ln(n) / rate + rate * rounds / 8.
TEST(DrafterChoiceTest, HedgeKeepsItsRegretBound) {
  std::mt19937 random(8);
  for (int drafters : {2, 5}) {
    for (const bool adverse : {false, true}) {
      constexpr int kRounds = 400;
      const double rate = std::sqrt(8 * std::log(drafters) / kRounds);
      double chosen_loss = 0;
      std::vector<double> losses(drafters, 0);
      constexpr int kRepeats = 400;  // an expectation, by many seeds
      std::vector<DrafterChoice> choices;
      for (uint64_t seed = 0; seed < kRepeats; ++seed) {
        choices.emplace_back(
            ChoiceOptions{.rate = rate, .share = 0, .score_every = 1, .seed = seed}, drafters);
      }
      for (int round = 0; round < kRounds; ++round) {
        std::vector<double> chosen(drafters, 0);
        for (DrafterChoice& choice : choices) {
          const DrafterChoice::Round next = choice.Next();
          ASSERT_TRUE(next.score_all);
          chosen[next.drafter] += 1.0 / kRepeats;
        }
        std::vector<double> rewards(drafters);
        const auto favourite = std::max_element(chosen.begin(), chosen.end()) - chosen.begin();
        for (int d = 0; d < drafters; ++d) {
          rewards[d] = adverse ? (d == favourite ? 0 : 1) : (random() % 100) / 99.0;
          losses[d] += 1 - rewards[d];
          chosen_loss += chosen[d] * (1 - rewards[d]);
        }
        for (DrafterChoice& choice : choices) choice.Scored(All(rewards));
      }
      const double best = *std::min_element(losses.begin(), losses.end());
      const double bound = std::log(drafters) / rate + rate * kRounds / 8;
      // The rest is the error of the mean of kRepeats choices, five deviations of it.
      const double error = 5 * 0.5 * std::sqrt(static_cast<double>(kRounds) / kRepeats);
      EXPECT_LE(chosen_loss, best + bound + error) << drafters << " " << adverse;
    }
  }
}

TEST(DrafterChoiceTest, OneThatCannotDraftKeepsItsWeight) {
  const auto chosen = [](DrafterChoice choice, int32_t drafter) {
    int times = 0;
    for (int i = 0; i < 2000; ++i) times += choice.Next().drafter == drafter;
    return times / 2000.0;
  };
  DrafterChoice choice({.share = 0, .score_every = 1, .seed = 9}, 3);
  for (int i = 0; i < 20; ++i) {
    choice.Scored(std::vector<std::optional<double>>{1.0, 0.0, std::nullopt});
  }
  EXPECT_NEAR(chosen(choice, 2), 1.0 / 3, 0.05);
  EXPECT_NEAR(chosen(choice, 0), 2.0 / 3, 0.05);
}

TEST(DrafterChoiceTest, HedgeAsksForScoresAsOftenAsItSays) {
  DrafterChoice choice({.score_every = 8, .seed = 3}, 2);
  int scored = 0;
  for (int i = 0; i < 8000; ++i) scored += choice.Next().score_all;
  EXPECT_NEAR(scored, 1000, 150);
  DrafterChoice alone({.score_every = 1}, 1);
  EXPECT_FALSE(alone.Next().score_all) << "there is nothing to compare";
}

}  // namespace
}  // namespace specfabric::speculation
