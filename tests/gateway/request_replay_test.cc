#include "gateway/request_replay.h"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace specfabric::gateway {
namespace {

using schemas::Finish;
using schemas::Submit;
using schemas::Tokens;

Submit MakeSubmit(int max_tokens = 100) {
  Submit submit;
  submit.request_id = 5;
  submit.sequence.prompt = {1, 2, 3};
  submit.sequence.max_tokens = max_tokens;
  submit.sequence.stop_ids = {9};
  return submit;
}

Tokens MakeTokens(int32_t first, std::vector<base::TokenId> tokens, uint32_t attempt = 0,
                  Finish finish = Finish::kNone) {
  Tokens message;
  message.request_id = 5;
  message.attempt = attempt;
  message.first_index = first;
  message.tokens = std::move(tokens);
  message.finish = finish;
  return message;
}

base::TokenLogprobs Scored(base::TokenId token, float logprob) {
  base::TokenLogprobs scored;
  scored.token = token;
  scored.logprob = logprob;
  return scored;
}

using Ids = std::vector<base::TokenId>;

TEST(RequestReplayTest, InOrder) {
  RequestReplay replay(MakeSubmit());
  EXPECT_EQ(replay.Apply(MakeTokens(0, {10, 11}))->tokens, Ids({10, 11}));
  const auto end = replay.Apply(MakeTokens(2, {12}, 0, Finish::kLength));
  EXPECT_EQ(end->tokens, Ids({12}));
  EXPECT_EQ(end->finish, Finish::kLength);
  EXPECT_FALSE(replay.Apply(MakeTokens(3, {13})).has_value());
  EXPECT_EQ(replay.emitted(), Ids({10, 11, 12}));
}

TEST(RequestReplayTest, TheEndWaitsForTheTokensBeforeIt) {
  RequestReplay replay(MakeSubmit());
  const auto early = replay.Apply(MakeTokens(2, {12}, 0, Finish::kStop));
  EXPECT_TRUE(early->tokens.empty());
  EXPECT_EQ(early->finish, Finish::kNone);
  const auto late = replay.Apply(MakeTokens(0, {10, 11}));
  EXPECT_EQ(late->tokens, Ids({10, 11, 12}));
  EXPECT_EQ(late->finish, Finish::kStop);
}

TEST(RequestReplayTest, AnErrorIsReportedAtOnce) {
  RequestReplay replay(MakeSubmit());
  Tokens error = MakeTokens(7, {}, 0, Finish::kError);
  error.error = "broken";
  const auto end = replay.Apply(error);
  EXPECT_EQ(end->finish, Finish::kError);
  EXPECT_EQ(end->error, "broken");
}

TEST(RequestReplayTest, AnyOrderAndRepetitionGiveEveryTokenOnce) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 2000; ++trial) {
    Ids all;
    std::vector<Tokens> messages;
    for (size_t i = 0; i < 12; ++i) {
      Ids some(random() % 4);
      for (auto& id : some) id = static_cast<base::TokenId>(10 + random() % 1000);
      messages.push_back(MakeTokens(static_cast<int32_t>(all.size()), some));
      all.insert(all.end(), some.begin(), some.end());
    }
    // Overlapping copies, as a faulty sender would make them.
    for (int copy = 0; copy < 4; ++copy) {
      const size_t first = random() % (all.size() + 1);
      const size_t count = random() % (all.size() - first + 1);
      messages.push_back(MakeTokens(static_cast<int32_t>(first),
                                    Ids(all.begin() + first, all.begin() + first + count)));
    }
    std::shuffle(messages.begin(), messages.end(), random);
    RequestReplay replay(MakeSubmit());
    Ids got;
    for (const Tokens& message : messages) {
      const auto news = replay.Apply(message);
      ASSERT_TRUE(news.has_value());
      got.insert(got.end(), news->tokens.begin(), news->tokens.end());
    }
    ASSERT_EQ(got, all);
    ASSERT_EQ(replay.emitted(), all);
    const auto end =
        replay.Apply(MakeTokens(static_cast<int32_t>(all.size()), {}, 0, Finish::kLength));
    ASSERT_EQ(end->finish, Finish::kLength);
  }
}

TEST(RequestReplayTest, TheNextAttemptContinues) {
  RequestReplay replay(MakeSubmit());
  replay.Apply(MakeTokens(0, {10, 11}));
  replay.Apply(MakeTokens(3, {13}));  // after a gap: not emitted, so it is generated again
  EXPECT_EQ(replay.NextAttempt(), std::nullopt);
  EXPECT_EQ(replay.submit().sequence.attempt, 1u);
  EXPECT_EQ(replay.submit().sequence.generated, Ids({10, 11}));
  EXPECT_EQ(replay.submit().sequence.prompt, Ids({1, 2, 3}));
  EXPECT_FALSE(replay.Apply(MakeTokens(2, {12}, 0)).has_value()) << "of the lost attempt";
  EXPECT_EQ(replay.Apply(MakeTokens(2, {12}, 1))->tokens, Ids({12}));
  EXPECT_EQ(replay.emitted(), Ids({10, 11, 12}));
}

TEST(RequestReplayTest, OnlyTheEndWasLost) {
  RequestReplay full(MakeSubmit(2));
  full.Apply(MakeTokens(0, {10, 11}));
  EXPECT_EQ(full.NextAttempt(), Finish::kLength);
  RequestReplay stopped(MakeSubmit());
  stopped.Apply(MakeTokens(0, {10, 9}));
  EXPECT_EQ(stopped.NextAttempt(), Finish::kStop);
}

TEST(RequestReplayTest, SpeculationAddsUpOverAttempts) {
  RequestReplay replay(MakeSubmit());
  Tokens message = MakeTokens(0, {10, 11});
  message.speculation.rounds = 2;
  message.speculation.drafted_rounds = 2;
  message.speculation.drafted = 8;
  message.speculation.accepted = 1;
  message.speculation.accepted_at = {1};
  replay.Apply(message);
  message = MakeTokens(0, {});  // an older message that arrives later
  message.speculation.rounds = 1;
  replay.Apply(message);
  EXPECT_EQ(replay.speculation().rounds, 2);
  replay.NextAttempt();
  message = MakeTokens(2, {12}, 1);
  message.speculation.rounds = 1;
  message.speculation.drafted_rounds = 1;
  message.speculation.drafted = 4;
  message.speculation.accepted_at = {1, 1};
  message.speculation.verification = schemas::VerificationMethod::kRejection;
  replay.Apply(message);
  EXPECT_EQ(replay.speculation().rounds, 3);
  EXPECT_EQ(replay.speculation().drafted_rounds, 3);
  EXPECT_EQ(replay.speculation().drafted, 12);
  EXPECT_EQ(replay.speculation().accepted, 1);
  EXPECT_EQ(replay.speculation().accepted_at, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(replay.speculation().verification, schemas::VerificationMethod::kRejection);
}

TEST(RequestReplayTest, CachedTokensCountThePromptOnly) {
  RequestReplay replay(MakeSubmit());
  Tokens message = MakeTokens(2, {12});  // arrives first
  message.cached_tokens = 1;
  replay.Apply(message);
  replay.Apply(MakeTokens(0, {10, 11}));
  EXPECT_EQ(replay.cached_tokens(), 1);
  replay.NextAttempt();
  message = MakeTokens(3, {13}, 1);
  message.cached_tokens = 4;
  replay.Apply(message);
  EXPECT_EQ(replay.cached_tokens(), 1);
}

TEST(RequestReplayTest, ScoresComeBeforeTokensAndOnce) {
  Submit submit = MakeSubmit();
  submit.sequence.score_prompt = true;
  submit.sequence.logprobs = 0;
  RequestReplay replay(submit);
  Tokens token = MakeTokens(0, {10});
  token.logprobs = {Scored(10, -1)};
  EXPECT_TRUE(replay.Apply(token)->tokens.empty());
  Tokens scores = MakeTokens(0, {});
  scores.prompt_logprobs = {Scored(2, -2), Scored(3, -3)};
  const auto news = replay.Apply(scores);
  EXPECT_EQ(news->prompt_logprobs.size(), 2u);
  EXPECT_EQ(news->tokens, Ids({10}));
  EXPECT_EQ(news->logprobs.size(), 1u);
  EXPECT_TRUE(replay.Apply(scores)->prompt_logprobs.empty());
  replay.NextAttempt();
  EXPECT_FALSE(replay.submit().sequence.score_prompt);
}

TEST(RequestReplayTest, LostScoresAreRequestedAgain) {
  Submit submit = MakeSubmit(0);
  submit.sequence.score_prompt = true;
  RequestReplay replay(submit);
  EXPECT_EQ(replay.NextAttempt(), std::nullopt);
  EXPECT_TRUE(replay.submit().sequence.score_prompt);
  EXPECT_EQ(replay.submit().sequence.attempt, 1u);
}

TEST(RequestReplayTest, APromptOfOneTokenHasNoScores) {
  Submit submit = MakeSubmit(0);
  submit.sequence.prompt = {1};
  submit.sequence.score_prompt = true;
  RequestReplay replay(submit);
  EXPECT_EQ(replay.Apply(MakeTokens(0, {}, 0, Finish::kLength))->finish, Finish::kLength);
}

}  // namespace
}  // namespace specfabric::gateway
