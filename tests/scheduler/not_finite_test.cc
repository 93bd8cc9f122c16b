// A sequence whose logits are not finite: how it ends, and that nothing of it stays in the cache.

#include <functional>

#include "tests/scheduler/rig.h"

namespace specfabric::scheduler {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// Commits the plan after `spoil` has changed the result of sequence `id`.
std::vector<Event> CommitSpoilt(const StepPlan& plan, base::SequenceId id,
                                const std::function<void(SequenceResult*)>& spoil, Rig* rig) {
  StepResult result = rig->group.Execute(plan, rig->scheduler);
  for (SequenceResult& one : result.sequences) {
    if (one.id != id) continue;
    one.accepted.finite = false;
    spoil(&one);
  }
  std::vector<Event> events = rig->scheduler.Commit(&result, 0);
  EXPECT_THAT(rig->group.errors(), IsEmpty());
  for (const SequenceEnded& ended : Of<SequenceEnded>(events)) rig->group.OnEnded(ended.id);
  rig->scheduler.Check();
  return events;
}

void NoToken(SequenceResult* result) { result->accepted.tokens.clear(); }

SequenceRequest Plain(base::SequenceId id, int prompt, int max_tokens) {
  SequenceRequest request = Request(id, prompt, max_tokens);
  request.prompt.assign(prompt, 7);  // the same in all requests
  request.speculate = false;
  return request;
}

TEST(NotFiniteTest, PrefillEndsOnlyItsOwnSequence) {
  Rig rig;
  SequenceRequest other = Request(2, 9, 4);
  other.speculate = false;
  ASSERT_TRUE(rig.scheduler.Add(Plain(1, 9, 4), 0).ok());
  ASSERT_TRUE(rig.scheduler.Add(other, 0).ok());
  const std::vector<Event> events = CommitSpoilt(rig.MustPlan(0), 1, NoToken, &rig);
  const auto tokens = Of<TokensEvent>(events);
  ASSERT_THAT(tokens, SizeIs(2));
  EXPECT_EQ(tokens[0].finish, FinishReason::kNotFinite);
  EXPECT_EQ(tokens[0].not_finite_at, 9);
  EXPECT_THAT(tokens[0].tokens, IsEmpty());
  EXPECT_FALSE(tokens[1].finish.has_value());
  ASSERT_THAT(Of<SequenceEnded>(events), SizeIs(1));
  std::vector<base::TokenId> output = tokens[1].tokens;
  while (rig.scheduler.Committed(2) != nullptr) {
    for (const TokensEvent& event : Of<TokensEvent>(rig.Step(0))) {
      output.insert(output.end(), event.tokens.begin(), event.tokens.end());
    }
  }
  EXPECT_EQ(output, RunAlone(other, rig.options).output);
}

TEST(NotFiniteTest, TreeKeepsTheTokensBefore) {
  Rig rig;
  ASSERT_TRUE(rig.scheduler.Add(Request(1, 6, 9), 0).ok());
  const auto want = Of<DraftWanted>(rig.Step(0)).at(0);
  const speculation::TokenTree chain = rig.Chain(1, 4);
  rig.scheduler.OnDraft(1, want.round, {.tree = chain}, 0);
  const auto events = CommitSpoilt(
      rig.MustPlan(0), 1,
      [](SequenceResult* result) {
        ASSERT_EQ(result->accepted.path.size(), 4u);
        result->accepted.path.resize(2);
        result->accepted.tokens.resize(2);
      },
      &rig);
  const auto tokens = Of<TokensEvent>(events);
  ASSERT_THAT(tokens, SizeIs(1));
  EXPECT_THAT(tokens[0].tokens, ElementsAre(chain.tokens[1], chain.tokens[2]));
  EXPECT_EQ(tokens[0].accepted, 2);
  EXPECT_EQ(tokens[0].finish, FinishReason::kNotFinite);
  EXPECT_EQ(tokens[0].not_finite_at, 6 + 1 + 2);
  EXPECT_THAT(Of<SequenceEnded>(events), SizeIs(1));
}

TEST(NotFiniteTest, EarlierFinishReasonWins) {
  Rig rig;
  SequenceRequest request = Request(1, 6, 9);
  ASSERT_TRUE(rig.scheduler.Add(request, 0).ok());
  const auto want = Of<DraftWanted>(rig.Step(0)).at(0);
  const speculation::TokenTree chain = rig.Chain(1, 7);  // to the last token but one
  rig.scheduler.OnDraft(1, want.round, {.tree = chain}, 0);
  const auto tokens = Of<TokensEvent>(CommitSpoilt(
      rig.MustPlan(0), 1, [](SequenceResult* result) { result->accepted.tokens.resize(7); }, &rig));
  EXPECT_EQ(tokens.at(0).finish, FinishReason::kNotFinite);
  EXPECT_EQ(tokens.at(0).not_finite_at, 6 + 8);
  request.id = 2;
  request.stop_ids = {chain.tokens[7]};
  ASSERT_TRUE(rig.scheduler.Add(request, 0).ok());
  const auto again = Of<DraftWanted>(rig.Step(0)).at(0);
  rig.scheduler.OnDraft(2, again.round, {.tree = rig.Chain(2, 7)}, 0);
  const auto stopped = Of<TokensEvent>(CommitSpoilt(
      rig.MustPlan(0), 2, [](SequenceResult* result) { result->accepted.tokens.resize(7); }, &rig));
  EXPECT_THAT(stopped.at(0).tokens, SizeIs(7));
  EXPECT_EQ(stopped.at(0).finish, FinishReason::kStop);
}

TEST(NotFiniteTest, ScoredPromptReportsTheTokensIndex) {
  for (const auto& [max_tokens, scored, at] :
       {std::tuple{0, 3, 4}, std::tuple{3, 0, 1}, std::tuple{3, 5, 6}}) {
    Rig rig;
    SequenceRequest request = Request(1, 7, max_tokens);
    request.score_prompt = true;
    ASSERT_TRUE(rig.scheduler.Add(request, 0).ok());
    const auto tokens = Of<TokensEvent>(CommitSpoilt(
        rig.MustPlan(0), 1,
        [scored = scored](SequenceResult* result) {
          result->accepted.tokens.clear();
          result->prompt_logprobs.resize(scored);
        },
        &rig));
    ASSERT_THAT(tokens, SizeIs(1));
    EXPECT_EQ(tokens[0].finish, FinishReason::kNotFinite);
    EXPECT_EQ(tokens[0].not_finite_at, at);
    EXPECT_THAT(tokens[0].prompt_logprobs, IsEmpty());
  }
  // In a later chunk; and the token after the prompt.
  Rig rig;
  SequenceRequest request = Request(1, 50, 2);
  request.score_prompt = true;
  ASSERT_TRUE(rig.scheduler.Add(request, 0).ok());
  EXPECT_THAT(rig.Step(0), IsEmpty());
  const StepPlan plan = rig.MustPlan(0);
  const auto tokens = Of<TokensEvent>(CommitSpoilt(plan, 1, NoToken, &rig));
  EXPECT_EQ(tokens.at(0).not_finite_at, 50);
}

TEST(NotFiniteTest, CancelInFlightWins) {
  Rig rig;
  ASSERT_TRUE(rig.scheduler.Add(Plain(1, 9, 4), 0).ok());
  const StepPlan plan = rig.MustPlan(0);
  EXPECT_THAT(rig.scheduler.Cancel(1), IsEmpty());
  const auto tokens = Of<TokensEvent>(CommitSpoilt(plan, 1, NoToken, &rig));
  EXPECT_EQ(tokens.at(0).finish, FinishReason::kCancelled);
}

TEST(NotFiniteTest, ItsBlocksAreNotCached) {
  Rig rig;
  // Its first chunk is published before any of its logits is computed.
  ASSERT_TRUE(rig.scheduler.Add(Plain(1, 45, 4), 0).ok());
  EXPECT_THAT(rig.Step(0), IsEmpty());
  CommitSpoilt(rig.MustPlan(0), 1, NoToken, &rig);
  EXPECT_EQ(rig.scheduler.stats().cached_blocks, 0);
  EXPECT_EQ(rig.scheduler.stats().free_blocks, rig.options.kv_blocks);
  ASSERT_TRUE(rig.scheduler.Add(Plain(2, 45, 4), 0).ok());
  EXPECT_EQ(rig.MustPlan(0).sequences[0].kv_len, 0) << "nothing was found in the cache";
}

TEST(NotFiniteTest, SharedBlocksStayCached) {
  Rig rig;
  ASSERT_TRUE(rig.scheduler.Add(Plain(1, 17, 20), 0).ok());
  rig.Step(0);
  ASSERT_TRUE(rig.scheduler.Add(Plain(2, 17, 4), 0).ok());
  StepPlan plan = rig.MustPlan(0);
  EXPECT_EQ(plan.sequences[1].kv_len, 16);
  CommitSpoilt(plan, 2, NoToken, &rig);
  ASSERT_TRUE(rig.scheduler.Add(Plain(3, 17, 4), 0).ok());
  plan = rig.MustPlan(0);
  EXPECT_EQ(plan.sequences[1].kv_len, 16);
  rig.Commit(plan, 0);
  while (rig.scheduler.Committed(1) != nullptr || rig.scheduler.Committed(3) != nullptr) {
    rig.Step(0);
    rig.scheduler.Check();
  }
}

}  // namespace
}  // namespace specfabric::scheduler
