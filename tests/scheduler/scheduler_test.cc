// Policy: which sequences are admitted, which wait, what a step holds. trace_test checks the texts.

#include "scheduler/scheduler.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampling/uniform.h"
#include "scheduler/sequence.h"
#include "tests/scheduler/fake_group.h"
#include "tests/scheduler/rig.h"

namespace specfabric::scheduler {
namespace {

using base::kMillisecond;
using base::Nanos;
using base::TokenId;
using speculation::TokenTree;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(AddTest, RefusesInOneClearLine) {
  Rig rig;
  absl::Status status = rig.scheduler.Add(Request(1, 0, 1), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("empty"));
  status = rig.scheduler.Add(Request(1, 64, 1), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("64 tokens: this model takes at most 63"));
  EXPECT_TRUE(rig.scheduler.Add(Request(1, 64, 0), 0).ok());  // scoring alone: it fits
  SequenceRequest request = Request(2, 3, 4);
  request.prompt[1] = 1000;
  EXPECT_THAT(Message(rig.scheduler.Add(request, 0)), HasSubstr("1000: allowed are 0 to 999"));
  request = Request(2, 3, 4);
  request.generated = {1, 2, -5};
  EXPECT_THAT(Message(rig.scheduler.Add(request, 0)), HasSubstr("-5"));
  request.generated = {1, 2, 3, 4};
  EXPECT_THAT(Message(rig.scheduler.Add(request, 0)), HasSubstr("nothing is left"));
  request = Request(2, 3, 4);
  request.rules.bias = {{1000, 1.0f}};
  EXPECT_THAT(Message(rig.scheduler.Add(request, 0)), HasSubstr("1000: allowed are 0 to 999"));
  request = Request(2, 3, 4);
  request.rules.suppressed_token_ids = {-1};
  EXPECT_THAT(Message(rig.scheduler.Add(request, 0)), HasSubstr("-1: allowed are 0 to 999"));
  request = Request(2, 3, 4);
  request.priority = 101;
  EXPECT_THAT(Message(rig.scheduler.Add(request, 0)), HasSubstr("101: allowed are -100 to 100"));
  request = Request(2, 3, -1);
  EXPECT_THAT(Message(rig.scheduler.Add(request, 0)), HasSubstr("-1"));
  EXPECT_EQ(rig.scheduler.Add(Request(1, 3, 4), 0).code(), absl::StatusCode::kAlreadyExists);
}

TEST(AddTest, RefusesWhatCanNeverRunAndWhenTheQueueIsFull) {
  SchedulerOptions options = Options();
  options.kv_blocks = 5;  // 20 slots
  options.max_waiting = 2;
  Rig rig(options);
  const absl::Status status = rig.scheduler.Add(Request(1, 10, 12), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("6 KV blocks: there are 5"));
  EXPECT_TRUE(rig.scheduler.Add(Request(1, 10, 11), 0).ok());
  EXPECT_TRUE(rig.scheduler.Add(Request(2, 1, 1), 0).ok());
  EXPECT_EQ(rig.scheduler.Add(Request(3, 1, 1), 0).code(), absl::StatusCode::kResourceExhausted);
}

TEST(AdmissionTest, FirstComeFirstServedWithoutOvertaking) {
  SchedulerOptions options = Options();
  options.kv_blocks = 6;  // 24 slots
  Rig rig(options);
  ASSERT_TRUE(rig.scheduler.Add(Request(1, 10, 2), 0).ok());   // 3 blocks
  ASSERT_TRUE(rig.scheduler.Add(Request(2, 13, 10), 0).ok());  // 4: must wait
  ASSERT_TRUE(rig.scheduler.Add(Request(3, 2, 1), 0).ok());    // 1: would fit, but arrived later
  rig.Step(0);
  EXPECT_EQ(rig.scheduler.stats().running, 1);
  EXPECT_EQ(rig.scheduler.stats().waiting, 2);
  EXPECT_EQ(rig.scheduler.stats().used_blocks, 3);
  rig.Step(0);  // 1 ends
  const StepPlan plan = rig.MustPlan(0);
  EXPECT_EQ(plan.sequences.size(), 2u);
  EXPECT_EQ(rig.scheduler.stats().used_blocks, 5);
  EXPECT_EQ(rig.scheduler.stats().waiting, 0);
}

TEST(PlanTest, IdleWaitsForEver) {
  Rig rig;
  EXPECT_EQ(rig.WaitTime(5), base::kForever);
}

TEST(PlanTest, PrefillIsChunkedInOrderOfArrival) {
  Rig rig;
  for (base::SequenceId id : {1, 2, 3}) {
    SequenceRequest request = Request(id, 20, 5);
    request.speculate = false;
    ASSERT_TRUE(rig.scheduler.Add(request, 0).ok());
  }
  StepPlan plan = rig.MustPlan(0);
  ASSERT_EQ(plan.sequences.size(), 2u);
  EXPECT_EQ(plan.sequences[0].row_count, 20);
  EXPECT_TRUE(plan.sequences[0].samples);
  EXPECT_EQ(plan.sequences[1].row_count, 12);
  EXPECT_FALSE(plan.sequences[1].samples);
  EXPECT_EQ(plan.sequences[1].logit_count, 0);
  rig.Commit(plan, 0);
  // The decode of the running sequence first, then the rest of the second, then the third.
  plan = rig.MustPlan(0);
  ASSERT_EQ(plan.sequences.size(), 3u);
  EXPECT_EQ(plan.sequences[0].kind, RowsKind::kTree);
  EXPECT_EQ(plan.sequences[1].row_count, 8);
  EXPECT_EQ(plan.sequences[1].kv_len, 12);
  EXPECT_TRUE(plan.sequences[1].samples);
  EXPECT_EQ(plan.sequences[2].row_count, 20);
  rig.Commit(plan, 0);
}

TEST(PlanTest, PrefillKeepsAQuarterOfTheStepAndTheBestDraftTokensShareTheRest) {
  Rig rig;
  for (base::SequenceId id : {1, 2, 3}) {
    ASSERT_TRUE(rig.scheduler.Add(Request(id, 4, 40), 0).ok());
  }
  rig.Step(0);
  rig.scheduler.OnDraft(1, 1, {rig.Chain(1, 15, -0.3f)}, 0);
  rig.scheduler.OnDraft(2, 1, {rig.Chain(2, 3, -0.3f)}, 0);
  rig.scheduler.OnDraft(3, 1, {rig.Chain(3, 15, -0.3f)}, 0);
  ASSERT_TRUE(rig.scheduler.Add(Request(4, 30, 1), 0).ok());
  const StepPlan plan = rig.MustPlan(0);
  ASSERT_EQ(plan.sequences.size(), 4u);
  EXPECT_EQ(plan.sequences[0].row_count, 10);
  EXPECT_EQ(plan.sequences[1].row_count, 4);
  EXPECT_EQ(plan.sequences[2].row_count, 10);
  EXPECT_EQ(plan.sequences[3].row_count, 8);
  EXPECT_EQ(plan.rows(), 32);
  const auto tokens = Of<TokensEvent>(rig.Commit(plan, 0));
  EXPECT_THAT(tokens[0].tokens, testing::SizeIs(10));
  EXPECT_EQ(tokens[0].drafted, 9);
  EXPECT_EQ(tokens[0].accepted, 9);
}

TEST(DraftTest, AlwaysPolicyWaitsForAllDrafts) {
  Rig rig;
  ASSERT_TRUE(rig.scheduler.Add(Request(1, 4, 20), 0).ok());
  SequenceRequest plain = Request(2, 4, 20);
  plain.speculate = false;
  ASSERT_TRUE(rig.scheduler.Add(plain, 0).ok());
  const auto wanted = Of<DraftWanted>(rig.Step(0));
  ASSERT_EQ(wanted.size(), 1u);
  EXPECT_EQ(wanted[0].id, 1u);
  EXPECT_EQ(wanted[0].round, 1u);
  EXPECT_EQ(wanted[0].committed, 5);
  EXPECT_EQ(wanted[0].deadline, 50 * kMillisecond);
  EXPECT_EQ(rig.WaitTime(1), 50 * kMillisecond);
  rig.scheduler.OnDraft(1, 1, {rig.Chain(1, 3)}, 2);
  const StepPlan plan = rig.MustPlan(4);
  ASSERT_EQ(plan.sequences.size(), 2u);
  EXPECT_EQ(plan.sequences[0].row_count, 4);
  rig.Commit(plan, 5);
  EXPECT_EQ(rig.scheduler.stats().draft_hits, 1u);
}

TEST(DraftTest, WaitsUntilTheDeadlineThenDecodesPlainly) {
  Rig rig;
  ASSERT_TRUE(rig.scheduler.Add(Request(1, 4, 40), 0).ok());
  rig.Step(0);
  EXPECT_EQ(rig.WaitTime(1), 50 * kMillisecond);
  EXPECT_EQ(rig.WaitTime(50 * kMillisecond - 1), 50 * kMillisecond);
  EXPECT_EQ(rig.scheduler.stats().draft_misses, 0u);
  const StepPlan plan = rig.MustPlan(50 * kMillisecond);
  EXPECT_EQ(plan.rows(), 1);
  EXPECT_EQ(rig.scheduler.stats().draft_misses, 1u);
  // Too late: the sequence is in flight.
  rig.scheduler.OnDraft(1, 1, {rig.Chain(1, 3)}, 51 * kMillisecond);
  EXPECT_EQ(rig.scheduler.stats().late_drafts, 1u);
  rig.Commit(plan, 52 * kMillisecond);
  // And for a round that is over.
  rig.scheduler.OnDraft(1, 1, {rig.Chain(1, 3)}, 53 * kMillisecond);
  EXPECT_EQ(rig.scheduler.stats().late_drafts, 2u);
}

TEST(DraftTest, ReplyAfterTheDeadlineIsUsedIfNotPlannedYet) {
  Rig rig;
  ASSERT_TRUE(rig.scheduler.Add(Request(1, 4, 40), 0).ok());
  rig.Step(0);
  rig.scheduler.OnDraft(1, 1, {rig.Chain(1, 3)}, 60 * kMillisecond);
  EXPECT_EQ(rig.MustPlan(61 * kMillisecond).rows(), 4);
  EXPECT_EQ(rig.scheduler.stats().draft_hits, 1u);
  EXPECT_EQ(rig.scheduler.stats().draft_misses, 0u);
}

TEST(DraftTest, UnavailableDraftEndsTheWaitAndIsAskedAgain) {
  Rig rig;
  ASSERT_TRUE(rig.scheduler.Add(Request(1, 4, 40), 0).ok());
  rig.Step(0);
  for (uint32_t round = 1; round < 10; ++round) {
    rig.scheduler.OnNoDraft(1, round);
    EXPECT_EQ(Of<DraftWanted>(rig.Step(0)).size(), 1u);
  }
}

TEST(DraftTest, AfterMissesASequenceStopsAskingAndThenProbes) {
  Rig rig;
  ASSERT_TRUE(rig.scheduler.Add(Request(1, 4, 40), 0).ok());
  Nanos now = 0;
  std::vector<size_t> asked = {Of<DraftWanted>(rig.Step(now)).size()};
  for (int i = 0; i < 6; ++i) {
    now += base::kSecond;
    asked.push_back(Of<DraftWanted>(rig.Step(now)).size());
  }
  EXPECT_THAT(asked, ElementsAre(1, 1, 0, 0, 0, 1, 0));
}

TEST(DraftTest, WrongRootIsAMissAndIsNotPlanned) {
  Rig rig;
  ASSERT_TRUE(rig.scheduler.Add(Request(1, 4, 40), 0).ok());
  rig.Step(0);
  TokenTree tree = rig.Chain(1, 3);
  tree.tokens[0] = (tree.tokens[0] + 1) % 1000;
  rig.scheduler.OnDraft(1, 1, {tree}, 1);
  EXPECT_EQ(rig.scheduler.stats().draft_misses, 1u);
  EXPECT_EQ(rig.MustPlan(1).rows(), 1);
}

TEST(DraftTest, NothingIsDraftedPastTheEndOfTheOutput) {
  Rig rig;
  ASSERT_TRUE(rig.scheduler.Add(Request(1, 4, 4), 0).ok());
  const auto wanted = Of<DraftWanted>(rig.Step(0));
  ASSERT_EQ(wanted.size(), 1u);
  EXPECT_EQ(wanted[0].max_nodes, 2);  // three tokens are left, of which the last is no draft token
  rig.scheduler.OnDraft(1, 1, {rig.Chain(1, 15)}, 1);
  const StepPlan plan = rig.MustPlan(1);
  EXPECT_EQ(plan.rows(), 3);
  const auto tokens = Of<TokensEvent>(rig.Commit(plan, 1));
  EXPECT_EQ(tokens[0].finish, FinishReason::kLength);
  EXPECT_EQ(tokens[0].tokens.size(), 3u);
}

TEST(DraftTest, LastTokenIsDecodedWithoutADraft) {
  Rig rig;
  ASSERT_TRUE(rig.scheduler.Add(Request(1, 4, 2), 0).ok());
  EXPECT_THAT(Of<DraftWanted>(rig.Step(0)), IsEmpty());
  EXPECT_EQ(Of<TokensEvent>(rig.Step(0))[0].finish, FinishReason::kLength);
}

TEST(FinishTest, StopIdInsideAnAcceptedPathCutsIt) {
  Rig rig;
  SequenceRequest request = Request(1, 4, 40);
  const std::vector<TokenId> text = RunAlone(request, rig.options).output;
  request.stop_ids = {text[3]};
  ASSERT_TRUE(rig.scheduler.Add(request, 0).ok());
  rig.Step(0);
  rig.scheduler.OnDraft(1, 1, {rig.Chain(1, 8)}, 1);
  const auto events = rig.Step(1);
  const auto tokens = Of<TokensEvent>(events);
  ASSERT_EQ(tokens.size(), 1u);
  EXPECT_EQ(tokens[0].tokens, (std::vector<TokenId>(text.begin() + 1, text.begin() + 4)));
  EXPECT_EQ(tokens[0].finish, FinishReason::kStop);
  EXPECT_EQ(tokens[0].accepted, 3);
  EXPECT_EQ(tokens[0].drafted, 8);
  EXPECT_EQ(Of<SequenceEnded>(events).size(), 1u);
  EXPECT_EQ(rig.scheduler.stats().used_blocks, 0);
  EXPECT_EQ(rig.scheduler.Committed(1), nullptr);
}

TEST(FinishTest, ContextLimitEndsTheOutput) {
  Rig rig;
  SequenceRequest request = Request(1, 60, 40);
  request.speculate = false;
  ASSERT_TRUE(rig.scheduler.Add(request, 0).ok());
  size_t output = 0;
  std::optional<FinishReason> finish;
  while (!finish) {
    for (const TokensEvent& event : Of<TokensEvent>(rig.Step(0))) {
      output += event.tokens.size();
      finish = event.finish;
    }
  }
  EXPECT_EQ(output, 4u);
  EXPECT_EQ(finish, FinishReason::kLength);
}

TEST(ScoreTest, EveryPromptRowIsScoredAcrossChunksAndReportedOnce) {
  Rig rig;
  SequenceRequest request = Request(1, 50, 0);
  for (int i = 0; i < 50; ++i) request.prompt[i] = i;
  request.score_prompt = true;
  ASSERT_TRUE(rig.scheduler.Add(request, 0).ok());
  StepPlan plan = rig.MustPlan(0);
  EXPECT_EQ(plan.sequences[0].logit_count, 32);
  EXPECT_FALSE(plan.sequences[0].samples);
  EXPECT_EQ(plan.score_tokens.front(), 1);
  EXPECT_EQ(plan.score_tokens.back(), 32);
  EXPECT_GE(plan.sequences[0].logprobs, 0);
  EXPECT_THAT(rig.Commit(plan, 0), IsEmpty());
  plan = rig.MustPlan(0);
  EXPECT_EQ(plan.sequences[0].logit_count, 17);  // the last row has no next prompt token
  const auto tokens = Of<TokensEvent>(rig.Commit(plan, 0));
  ASSERT_EQ(tokens.size(), 1u);
  EXPECT_EQ(tokens[0].prompt_logprobs.size(), 49u);
  EXPECT_EQ(tokens[0].finish, FinishReason::kLength);
}

TEST(ScoreTest, ScoringAndSamplingShareThePrefill) {
  Rig rig;
  SequenceRequest request = Request(1, 5, 3);
  request.score_prompt = true;
  request.speculate = false;
  ASSERT_TRUE(rig.scheduler.Add(request, 0).ok());
  const StepPlan plan = rig.MustPlan(0);
  EXPECT_THAT(plan.score_tokens, ElementsAre(1, 1, 1, 1, base::kNoToken));
  EXPECT_TRUE(plan.sequences[0].samples);
  const auto tokens = Of<TokensEvent>(rig.Commit(plan, 0));
  EXPECT_EQ(tokens[0].tokens.size(), 1u);
  EXPECT_EQ(tokens[0].prompt_logprobs.size(), 4u);
  EXPECT_THAT(tokens[0].logprobs, IsEmpty());  // the output's were not requested
}

TEST(ResumeTest, OutputContinuesTheEarlierAttempts) {
  Rig rig;
  SequenceRequest request = Request(1, 4, 6);
  const std::vector<TokenId> whole = RunAlone(request, rig.options).output;
  request.generated.assign(whole.begin(), whole.begin() + 2);
  request.speculate = false;
  ASSERT_TRUE(rig.scheduler.Add(request, 0).ok());
  StepPlan plan = rig.MustPlan(0);
  EXPECT_EQ(plan.rows(), 6);
  const auto tokens = Of<TokensEvent>(rig.Commit(plan, 0));
  EXPECT_EQ(tokens[0].first_index, 2);
  EXPECT_THAT(tokens[0].tokens, ElementsAre(whole[2]));
}

// The token counts that a plan should have, as a map; 0 for a token that is in the prompt only.
std::map<TokenId, int32_t> CountsIn(const std::vector<TokenId>& text, size_t prompt) {
  std::map<TokenId, int32_t> counts;
  for (size_t i = 0; i < text.size(); ++i) counts[text[i]] += i >= prompt;
  return counts;
}

TEST(RulesTest, PlanCountsCommittedTokensOnly) {
  Rig rig;
  SequenceRequest request = Request(1, 4, 30);
  request.prompt = {7, 8, 7, 9};
  request.generated = {7, 100};
  request.rules.repetition_penalty = 1.5f;
  ASSERT_TRUE(rig.scheduler.Add(request, 0).ok());
  for (int round = 0; round < 5; ++round) {
    const std::vector<TokenId> committed = *rig.scheduler.Committed(1);
    if (round > 0) {  // Two of three draft tokens are right.
      TokenTree tree = rig.Chain(1, 3);
      tree.tokens[3] = (tree.tokens[3] + 1) % 1000;
      rig.scheduler.OnDraft(1, static_cast<uint32_t>(round), {tree}, 0);
    }
    const StepPlan plan = rig.MustPlan(0);
    ASSERT_EQ(plan.sequences.size(), 1u);
    const PlanSequence& part = plan.sequences[0];
    EXPECT_EQ(part.prompt_size, 4);
    EXPECT_EQ(part.rules, request.rules);
    EXPECT_EQ(part.row_count, round == 0 ? 6 : 4);
    std::map<TokenId, int32_t> counts;
    for (const auto& [token, output] : part.counts) counts[token] = output;
    EXPECT_EQ(counts.size(), part.counts.size());
    EXPECT_EQ(counts, CountsIn(committed, 4)) << "round " << round;
    rig.Commit(plan, 0);
  }
}

TEST(RulesTest, NothingIsCountedUnlessNeeded) {
  Rig rig;
  SequenceRequest request = Request(1, 4, 30);
  request.rules.bias = {{3, 1.0f}};
  request.speculate = false;
  ASSERT_TRUE(rig.scheduler.Add(request, 0).ok());
  request.id = 2;
  request.rules.frequency_penalty = 1.0f;
  ASSERT_TRUE(rig.scheduler.Add(request, 0).ok());
  rig.Step(0);
  const StepPlan plan = rig.MustPlan(0);
  EXPECT_THAT(plan.sequences[0].counts, IsEmpty());
  // A frequency penalty does not count the prompt.
  ASSERT_EQ(plan.sequences[1].counts.size(), 1u);
  EXPECT_EQ(plan.sequences[1].counts[0].output, 1);
}

TEST(CancelTest, FreesAtOnceOrAtTheCommit) {
  Rig rig;
  ASSERT_TRUE(rig.scheduler.Add(Request(1, 4, 40), 0).ok());
  auto events = rig.scheduler.Cancel(1);  // still in the queue
  EXPECT_EQ(Of<TokensEvent>(events).at(0).finish, FinishReason::kCancelled);
  EXPECT_EQ(Of<SequenceEnded>(events).size(), 1u);
  EXPECT_THAT(rig.scheduler.Cancel(1), IsEmpty());

  ASSERT_TRUE(rig.scheduler.Add(Request(1, 4, 40), 0).ok());
  const StepPlan plan = rig.MustPlan(0);
  EXPECT_THAT(rig.scheduler.Cancel(1), IsEmpty());
  EXPECT_GT(rig.scheduler.stats().used_blocks, 0);
  events = rig.Commit(plan, 0);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(Of<TokensEvent>(events).at(0).finish, FinishReason::kCancelled);
  EXPECT_THAT(Of<TokensEvent>(events).at(0).tokens, IsEmpty());
  EXPECT_EQ(rig.scheduler.stats().used_blocks, 0);
}

TEST(AbortTest, EndsOnlyTheSequencesOfTheStep) {
  Rig rig;
  ASSERT_TRUE(rig.scheduler.Add(Request(1, 4, 40), 0).ok());
  rig.Step(0);  // 1 waits for its draft
  ASSERT_TRUE(rig.scheduler.Add(Request(2, 4, 40), 0).ok());
  rig.MustPlan(1);
  const auto events = rig.scheduler.Abort();
  ASSERT_EQ(Of<TokensEvent>(events).size(), 1u);
  EXPECT_EQ(Of<TokensEvent>(events)[0].id, 2u);
  EXPECT_EQ(Of<TokensEvent>(events)[0].finish, FinishReason::kError);
  EXPECT_EQ(rig.scheduler.stats().running, 1);
}

TEST(SchedulerDeathTest, MisuseEndsTheProcess) {
  Rig rig;
  StepResult none;
  EXPECT_DEATH(rig.scheduler.Commit(&none, 0), "check failed");
  ASSERT_TRUE(rig.scheduler.Add(Request(1, 4, 40), 0).ok());
  const StepPlan plan = rig.MustPlan(0);
  EXPECT_DEATH(rig.scheduler.Plan(0), "check failed");
  StepResult wrong = rig.group.Execute(plan, rig.scheduler);
  wrong.sequences[0].accepted.path = {1};
  EXPECT_DEATH(rig.scheduler.Commit(&wrong, 0), "check failed");
}

// parts[0] is the only sequence of the step.
TEST(SchedulerTest, PlanStatesHowDraftTokensWereDrawn) {
  Rig rig(Options());
  SequenceRequest request = Request(1, 4, 40);
  request.verification = speculation::VerificationMethod::kRejection;
  request.attempt = 2;
  ASSERT_TRUE(rig.scheduler.Add(request, 0).ok());
  rig.Step(0);
  TokenTree tree = TokenTree::Root(rig.scheduler.Committed(1)->back());
  for (int parent : {0, 0, 1, 3}) tree.Add(parent, 7, 0);
  rig.scheduler.OnDraft(1, 1,
                        {tree, speculation::SiblingDraw::kWithoutReplacement, {-1, 0, 0, 1, 2}}, 1);
  const StepPlan plan = rig.MustPlan(1);
  ASSERT_EQ(plan.sequences.size(), 1u);
  const PlanSequence& part = plan.sequences[0];
  EXPECT_EQ(part.verification, speculation::VerificationMethod::kRejection);
  EXPECT_EQ(part.draw, speculation::SiblingDraw::kWithoutReplacement);
  EXPECT_EQ(part.draw_number, sampling::DrawNumber(2, 1));
  EXPECT_THAT(part.draft_row, ElementsAre(-1, 0, 0, 1, 2));
}

}  // namespace
}  // namespace specfabric::scheduler
