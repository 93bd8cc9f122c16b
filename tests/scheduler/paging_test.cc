// Sharing of KV blocks, waiting for them, and preemption.

#include <numeric>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/scheduler.h"
#include "tests/scheduler/rig.h"
#include "verification/randomness.h"

namespace specfabric::scheduler {
namespace {

using base::TokenId;
using speculation::TokenTree;
using testing::ElementsAre;
using testing::IsEmpty;

std::vector<base::SequenceId> Ids(const StepPlan& plan) {
  std::vector<base::SequenceId> ids;
  for (const PlanSequence& part : plan.sequences) ids.push_back(part.id);
  return ids;
}

// A request without speculation, whose prompt is 100, 101, ...
SequenceRequest Plain(base::SequenceId id, int prompt, int max_tokens) {
  SequenceRequest request = Request(id, prompt, max_tokens);
  std::iota(request.prompt.begin(), request.prompt.end(), 100);
  request.speculate = false;
  return request;
}

struct Ended {
  std::vector<TokenId> output;
  int32_t cached = 0;
};

// Steps until the sequence ends.
Ended Finish(base::SequenceId id, Rig* rig) {
  Ended ended;
  while (rig->scheduler.Committed(id) != nullptr && !testing::Test::HasFailure()) {
    for (const TokensEvent& event : Of<TokensEvent>(rig->Step(0))) {
      if (event.id != id) continue;
      ended.output.insert(ended.output.end(), event.tokens.begin(), event.tokens.end());
      ended.cached += event.cached_tokens;
    }
    rig->scheduler.Check();
  }
  return ended;
}

TEST(PrefixTest, LaterRequestReusesFullBlocksBeforeTheLastToken) {
  Rig rig;
  ASSERT_TRUE(rig.scheduler.Add(Plain(1, 16, 6), 0).ok());
  EXPECT_EQ(Finish(1, &rig).cached, 0);
  EXPECT_EQ(rig.scheduler.stats().cached_blocks, 5);  // 21 tokens were written
  EXPECT_EQ(rig.scheduler.stats().used_blocks, 0);
  ASSERT_TRUE(rig.scheduler.Add(Plain(2, 16, 6), 0).ok());
  const StepPlan plan = rig.MustPlan(0);
  EXPECT_EQ(plan.sequences[0].kv_len, 12);
  EXPECT_EQ(plan.rows(), 4);
  EXPECT_EQ(Of<TokensEvent>(rig.Commit(plan, 0)).at(0).cached_tokens, 12);
  Finish(2, &rig);
  // The next turn: the prompt, the answer and a question.
  SequenceRequest turn = Plain(3, 16, 6);
  const std::vector<TokenId> answer = RunAlone(turn, rig.options).output;
  turn.prompt.insert(turn.prompt.end(), answer.begin(), answer.end());
  turn.prompt.push_back(7);
  ASSERT_TRUE(rig.scheduler.Add(turn, 0).ok());
  const Ended ended = Finish(3, &rig);
  EXPECT_EQ(ended.cached, 20);
  EXPECT_EQ(ended.output, RunAlone(turn, rig.options).output);
  EXPECT_EQ(rig.scheduler.stats().cache_hits, 32u);
  EXPECT_EQ(rig.scheduler.stats().cache_queries, 55u);
}

TEST(PrefixTest, NothingIsSharedAcrossSaltsOrWhenScoringOrWhenOff) {
  Rig rig;
  ASSERT_TRUE(rig.scheduler.Add(Plain(1, 16, 2), 0).ok());
  Finish(1, &rig);
  SequenceRequest request = Plain(2, 16, 2);
  request.cache_salt = 1;
  ASSERT_TRUE(rig.scheduler.Add(request, 0).ok());
  EXPECT_EQ(Finish(2, &rig).cached, 0);
  request = Plain(3, 16, 2);
  request.score_prompt = true;
  ASSERT_TRUE(rig.scheduler.Add(request, 0).ok());
  EXPECT_EQ(Finish(3, &rig).cached, 0);
  request = Plain(4, 16, 2);
  request.cache_salt = 1;
  ASSERT_TRUE(rig.scheduler.Add(request, 0).ok());
  EXPECT_EQ(Finish(4, &rig).cached, 12);

  SchedulerOptions options = Options();
  options.prefix_cache = false;
  Rig off(options);
  for (base::SequenceId id : {1, 2}) {
    ASSERT_TRUE(off.scheduler.Add(Plain(id, 16, 2), 0).ok());
    EXPECT_EQ(Finish(id, &off).cached, 0);
  }
  EXPECT_EQ(off.scheduler.stats().cached_blocks, 0);
  EXPECT_EQ(off.scheduler.stats().cache_queries, 0u);
}

TEST(PrefixTest, SequencesOfOnePromptWaitForTheFirstAndShareItsBlocks) {
  Rig rig;
  for (base::SequenceId id : {1, 2, 3}) {
    ASSERT_TRUE(rig.scheduler.Add(Plain(id, 14, 4), 0).ok());
  }
  StepPlan plan = rig.MustPlan(0);
  EXPECT_THAT(Ids(plan), ElementsAre(1));
  EXPECT_EQ(plan.rows(), 14);
  rig.Commit(plan, 0);
  plan = rig.MustPlan(0);
  EXPECT_THAT(Ids(plan), ElementsAre(1, 2, 3));
  EXPECT_EQ(plan.rows(), 1 + 2 + 2);
  // Three shared full blocks, and one that each writes.
  EXPECT_EQ(rig.scheduler.stats().used_blocks, 3 + 3);
  for (const TokensEvent& event : Of<TokensEvent>(rig.Commit(plan, 0))) {
    EXPECT_EQ(event.cached_tokens, event.id == 1 ? 0 : 12);
  }
}

TEST(PrefixTest, ShortCommonPrefixIsSharedWithoutWaiting) {
  Rig rig;
  SequenceRequest other = Plain(2, 14, 4);
  for (int i = 4; i < 14; ++i) other.prompt[i] = 7;
  ASSERT_TRUE(rig.scheduler.Add(Plain(1, 14, 4), 0).ok());
  ASSERT_TRUE(rig.scheduler.Add(other, 0).ok());
  const StepPlan plan = rig.MustPlan(0);
  EXPECT_EQ(plan.rows(), 28);
  EXPECT_EQ(rig.scheduler.stats().used_blocks, 8);
  rig.Commit(plan, 0);
  EXPECT_EQ(rig.scheduler.stats().used_blocks, 7);  // the first block is shared
}

TEST(GrowthTest, BlocksGrowWithTheSequenceAndUnusedTreeBlocksAreReleased) {
  Rig rig;
  ASSERT_TRUE(rig.scheduler.Add(Request(1, 7, 40), 0).ok());
  rig.Step(0);
  EXPECT_EQ(rig.scheduler.stats().used_blocks, 2);
  TokenTree tree = rig.Chain(1, 15);
  for (int node = 3; node < 16; ++node) tree.tokens[node] = (tree.tokens[node] + 1) % 1000;
  rig.scheduler.OnDraft(1, 1, {tree}, 0);
  const StepPlan plan = rig.MustPlan(0);
  EXPECT_EQ(plan.rows(), 16);
  EXPECT_EQ(rig.scheduler.stats().used_blocks, 6);
  rig.Commit(plan, 0);
  EXPECT_EQ(rig.scheduler.stats().used_blocks, 3);  // 10 tokens are written
  rig.scheduler.Check();
}

TEST(GrowthTest, BlocksThatPendingMovesReadAreKept) {
  Rig rig;
  ASSERT_TRUE(rig.scheduler.Add(Request(1, 7, 40), 0).ok());
  rig.Step(0);
  TokenTree tree = rig.Chain(1, 1);
  const TokenId right = tree.tokens[1];
  tree.tokens[1] = (right + 1) % 1000;
  while (tree.size() < 15) tree.Add(0, (right + tree.size() + 1) % 1000, 0.0f);
  tree.Add(0, right, 0.0f);  // slot 7 + 15 belongs at 8
  rig.scheduler.OnDraft(1, 1, {tree}, 0);
  rig.Step(0);
  EXPECT_EQ(rig.scheduler.stats().used_blocks, 6);
  rig.scheduler.OnNoDraft(1, 2);
  StepPlan plan = rig.MustPlan(0);
  EXPECT_EQ(plan.moves.size(), 1u);
  rig.Commit(plan, 0);
  EXPECT_EQ(rig.scheduler.stats().used_blocks, 3);
}

SchedulerOptions Tight() {
  SchedulerOptions options = Options();
  options.kv_blocks = 8;  // 32 slots
  return options;
}

TEST(PreemptionTest, YoungestIsPreemptedAndResumesTokenForToken) {
  Rig rig(Tight());
  for (base::SequenceId id : {1, 2}) {
    SequenceRequest request = Request(id, 10, 18);
    request.speculate = false;
    ASSERT_TRUE(rig.scheduler.Add(request, 0).ok());
  }
  std::vector<base::SequenceId> preempted;
  std::vector<TokenId> output[3];
  while (rig.scheduler.stats().running + rig.scheduler.stats().waiting > 0) {
    const StepPlan plan = rig.MustPlan(0);
    preempted.insert(preempted.end(), plan.preempted.begin(), plan.preempted.end());
    for (const TokensEvent& event : Of<TokensEvent>(rig.Commit(plan, 0))) {
      output[event.id].insert(output[event.id].end(), event.tokens.begin(), event.tokens.end());
    }
    rig.scheduler.Check();
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_THAT(preempted, ElementsAre(2));
  EXPECT_EQ(rig.scheduler.stats().preemptions, 1u);
  for (base::SequenceId id : {1, 2}) {
    EXPECT_EQ(output[id], RunAlone(Request(id, 10, 18), rig.options).output);
  }
}

TEST(PreemptionTest, RoundNumbersContinueAfterPreemption) {
  Rig rig(Tight());
  SequenceRequest first = Request(1, 10, 18);
  first.speculate = false;
  ASSERT_TRUE(rig.scheduler.Add(first, 0).ok());
  SequenceRequest second = Request(2, 14, 12);
  second.verification = speculation::VerificationMethod::kRejection;
  ASSERT_TRUE(rig.scheduler.Add(second, 0).ok());
  uint32_t round = 0;
  std::vector<uint32_t> draws;
  bool resumed = false;
  for (base::Nanos now = 0; rig.scheduler.Committed(2) != nullptr; now += base::kSecond) {
    const StepPlan plan = rig.MustPlan(now);
    resumed |= !plan.preempted.empty();
    for (const DraftWanted& wanted : Of<DraftWanted>(rig.Commit(plan, now))) {
      EXPECT_GT(wanted.round, round);
      round = wanted.round;
      rig.scheduler.OnNoDraft(2, round);
    }
    for (const PlanSequence& part : plan.sequences) {
      if (part.id == 2 && part.kind == RowsKind::kTree) draws.push_back(part.draw_number);
    }
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_TRUE(resumed);
  EXPECT_GT(draws.size(), 3u);
  EXPECT_EQ(std::set<uint32_t>(draws.begin(), draws.end()).size(), draws.size());
}

TEST(PreemptionTest, DraftTokensDoNotPreempt) {
  SchedulerOptions options = Options();
  options.kv_blocks = 6;
  Rig rig(options);
  ASSERT_TRUE(rig.scheduler.Add(Request(1, 10, 12), 0).ok());
  ASSERT_TRUE(rig.scheduler.Add(Request(2, 7, 12), 0).ok());  // 5 of 6 blocks
  rig.Step(0);
  rig.scheduler.OnDraft(1, 1, {rig.Chain(1, 10)}, 0);
  rig.scheduler.OnNoDraft(2, 1);
  const StepPlan plan = rig.MustPlan(0);
  ASSERT_EQ(plan.sequences.size(), 2u);
  EXPECT_THAT(plan.preempted, IsEmpty());
  EXPECT_EQ(plan.sequences[0].id, 1u);
  EXPECT_EQ(plan.sequences[0].row_count, 6);  // slots 10 to 15
}

TEST(PriorityTest, HigherGoesFirstUntilAnotherHasWaitedLongEnough) {
  SchedulerOptions options = Options();
  options.max_sequences = 1;
  options.priority_ageing = base::kSecond;
  Rig rig(options);
  const auto add = [&](base::SequenceId id, int32_t priority, base::Nanos now) {
    SequenceRequest request = Request(id, 4, 1);
    request.priority = priority;
    ASSERT_TRUE(rig.scheduler.Add(request, now).ok());
  };
  add(1, 0, 0);
  add(2, -1, 0);
  add(3, 1, base::kSecond / 2);
  add(4, 0, base::kSecond / 2);
  add(5, 0, base::kSecond + 1);  // later than a step lower
  std::vector<base::SequenceId> order;
  for (int i = 0; i < 5; ++i) {
    const StepPlan plan = rig.MustPlan(2 * base::kSecond);
    order.push_back(plan.sequences.at(0).id);
    rig.Commit(plan, 2 * base::kSecond);
  }
  EXPECT_THAT(order, ElementsAre(3, 1, 4, 2, 5));
}

TEST(PriorityTest, LowestPriorityIsPreemptedThoughOlder) {
  Rig rig(Tight());
  for (base::SequenceId id : {1, 2}) {
    SequenceRequest request = Request(id, 10, 18);
    request.speculate = false;
    request.priority = id == 1 ? -1 : 0;
    ASSERT_TRUE(rig.scheduler.Add(request, 0).ok());
  }
  std::vector<base::SequenceId> preempted;
  while (rig.scheduler.Committed(2) != nullptr) {
    const StepPlan plan = rig.MustPlan(0);
    preempted.insert(preempted.end(), plan.preempted.begin(), plan.preempted.end());
    rig.Commit(plan, 0);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_THAT(preempted, ElementsAre(1));
}

}  // namespace
}  // namespace specfabric::scheduler
