// Proposal sources in a round: the n-gram lookup at once, a drafter once it has replied, or both.

#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/scheduler.h"
#include "tests/scheduler/rig.h"

namespace specfabric::scheduler {
namespace {

using base::TokenId;
using speculation::SiblingDraw;
using speculation::TokenTree;
using speculation::VerificationMethod;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr base::SequenceId kId = 1;

// One sequence whose text repeats 1 2 3 4 5 6, and a target that continues it.
class RoundDraftTest : public testing::Test {
 protected:
  void Start(const SchedulerOptions& options,
             VerificationMethod verification = VerificationMethod::kCoupled,
             int32_t max_draft_tokens = kMaxDraftTokens, const DraftSources& sources = {}) {
    scheduler_ = std::make_unique<Scheduler>(options);
    SequenceRequest request;
    request.id = kId;
    for (int i = 0; i < 15; ++i) request.prompt.push_back(Token(i));
    request.max_tokens = 400;
    request.verification = verification;
    request.max_draft_tokens = max_draft_tokens;
    request.sources = sources;
    ASSERT_TRUE(scheduler_->Add(std::move(request), now_).ok());
    Step();
  }
  static SchedulerOptions With(bool ngram_lookup) {
    SchedulerOptions options = Options();
    options.ngram_lookup = ngram_lookup;
    options.kv_blocks = 200;
    options.max_context = 500;
    options.max_tree_nodes = 64;
    options.max_step_tokens = 80;
    return options;
  }
  static TokenId Token(size_t place) { return static_cast<TokenId>(1 + place % 6); }

  // The next `count` tokens below the last one, as a chain.
  TokenTree Chain(int count, TokenId last = 0) const {
    const std::vector<TokenId>& text = *scheduler_->Committed(kId);
    TokenTree tree = TokenTree::Root(text.back());
    for (int i = 0; i < count; ++i) tree.Add(i, Token(text.size() + i), -0.1f);
    if (last != 0) tree.tokens.back() = last;
    return tree;
  }

  // Plans and commits a step; its tokens continue the text.
  StepPlan Step() {
    auto planned = scheduler_->Plan(now_);
    if (!std::holds_alternative<StepPlan>(planned)) {
      ADD_FAILURE() << "nothing was planned";
      return {};
    }
    const StepPlan plan = std::get<StepPlan>(std::move(planned));
    const size_t size = scheduler_->Committed(kId)->size();
    SequenceResult result;
    result.id = kId;
    result.forced = forced_;
    int node = 0;
    for (bool found = true; found;) {
      const TokenId next = Token(size + result.accepted.path.size());
      result.accepted.tokens.push_back(next);
      found = false;
      for (int row = node + 1; row < plan.rows() && plan.sequences[0].kind == RowsKind::kTree;
           ++row) {
        if (plan.parents[row] != node || plan.tokens[row] != next) continue;
        result.accepted.path.push_back(node = row);
        found = true;
        break;
      }
    }
    now_ += base::kMillisecond;
    wanted_.clear();
    StepResult results{plan.step, {std::move(result)}};
    for (const Event& event : scheduler_->Commit(&results, now_)) {
      if (const auto* want = std::get_if<DraftWanted>(&event)) wanted_.push_back(*want);
      if (const auto* tokens = std::get_if<TokensEvent>(&event)) last_ = *tokens;
    }
    return plan;
  }
  void NoDraft() { scheduler_->OnNoDraft(kId, wanted_.at(0).round); }
  void Draft(TokenTree tree, SiblingDraw draw = SiblingDraw::kCoupledTopK, uint8_t drafter = 3) {
    speculation::Draft draft = {.tree = std::move(tree), .draw = draw, .drafter = drafter};
    if (draw == SiblingDraw::kWithoutReplacement) {
      draft.draft_row = speculation::DraftRows(draft.tree);
    }
    scheduler_->OnDraft(kId, wanted_.at(0).round, std::move(draft), now_);
  }

  std::unique_ptr<Scheduler> scheduler_;
  base::Nanos now_ = base::kSecond;
  std::vector<DraftWanted> wanted_;
  std::vector<TokenId> forced_;  // after the next step
  TokensEvent last_;
};

TEST_F(RoundDraftTest, NgramLookupProposesWithoutADrafter) {
  Start(With(true));
  NoDraft();
  const StepPlan plan = Step();
  EXPECT_GT(plan.rows(), 8);
  EXPECT_EQ(last_.accepted, last_.drafted);
  EXPECT_EQ(last_.accepted_by.by_ngram_lookup, last_.accepted);
  EXPECT_EQ(scheduler_->stats().draft_hits, 0u);
}

// A drafter's two tokens would add nothing to the dozen that the n-gram lookup finds.
TEST_F(RoundDraftTest, DrafterIsNotAskedWhereTheNgramLookupFindsMore) {
  for (const bool ngram_lookup : {false, true}) {
    SchedulerOptions options = With(ngram_lookup);
    options.speculation = SpeculationPolicy::kGoodput;
    Start(options);
    int asked = 0;
    for (int round = 0; round < 24; ++round) {
      if (!wanted_.empty()) {
        asked += round >= 12;
        Draft(Chain(2));
      }
      Step();
    }
    EXPECT_EQ(asked, ngram_lookup ? 0 : 12);
  }
}

TEST_F(RoundDraftTest, DisabledNgramLookupProposesNothing) {
  Start(With(false));
  NoDraft();
  EXPECT_EQ(Step().rows(), 1);
}

TEST_F(RoundDraftTest, RequestWithoutSpeculationHasNoDraft) {
  SchedulerOptions options = With(true);
  Scheduler scheduler(options);
  SequenceRequest request = Request(kId, 20, 8);
  request.speculate = false;
  ASSERT_TRUE(scheduler.Add(std::move(request), now_).ok());
  const StepPlan prefill = std::get<StepPlan>(scheduler.Plan(now_));
  StepResult first{prefill.step, {{kId, {{}, {1}}, {}, {}}}};
  scheduler.Commit(&first, now_);
  EXPECT_EQ(std::get<StepPlan>(scheduler.Plan(now_)).rows(), 1);
}

TEST_F(RoundDraftTest, DraftersTreeIsMergedWhereTheMethodMerges) {
  Start(With(true));
  Draft(Chain(3, 9));  // its third draft token is wrong
  const StepPlan plan = Step();
  EXPECT_THAT(plan.tokens, testing::Contains(9));
  EXPECT_EQ(last_.accepted_by.also_ngram_lookup, 2) << "both proposed the first two";
  EXPECT_EQ(last_.accepted_by.by_drafter[3], 2);
  EXPECT_EQ(last_.accepted_by.by_ngram_lookup, last_.accepted - 2) << "and the n-gram lookup more";
  EXPECT_GT(last_.accepted_by.by_ngram_lookup, 3);
  EXPECT_EQ(last_.drafted_by.by_drafter[3], 3);
}

TEST_F(RoundDraftTest, ExtraDraftersTreeIsMerged) {
  Start(With(true));
  scheduler_->OnExtraDraft(kId, wanted_.at(0).round, {.tree = Chain(2, 8), .drafter = 5});
  EXPECT_TRUE(std::holds_alternative<WaitUntil>(scheduler_->Plan(now_)))
      << "an extra draft ends no wait";
  Draft(Chain(3, 9));
  scheduler_->OnExtraDraft(kId, wanted_.at(0).round, {.tree = Chain(1, 7), .drafter = 6});
  const StepPlan plan = Step();
  EXPECT_THAT(plan.tokens, testing::IsSupersetOf({7, 8, 9}));
  EXPECT_EQ(last_.drafted_by.by_drafter[5], 1);
  EXPECT_EQ(last_.drafted_by.by_drafter[6], 1);
  EXPECT_EQ(scheduler_->stats().late_drafts, 0u);
}

TEST_F(RoundDraftTest, MergedTreeStaysWithinTheNodeLimit) {
  SchedulerOptions options = With(true);
  options.max_tree_nodes = 6;
  Start(options);
  TokenTree wide = TokenTree::Root(scheduler_->Committed(kId)->back());
  for (int i = 0; i < 5; ++i) wide.Add(0, 20 + i, -3.0f);
  Draft(wide);
  EXPECT_EQ(Step().rows(), 6);
  EXPECT_GT(last_.accepted, 1) << "the better draft tokens were kept";
}

TEST_F(RoundDraftTest, MethodsThatNeedDraftProbabilitiesUseOneSource) {
  Start(With(true), VerificationMethod::kRejection);
  NoDraft();
  EXPECT_GT(Step().rows(), 1) << "the n-gram lookup needs no draft probabilities";
  EXPECT_EQ(last_.accepted_by.by_ngram_lookup, last_.accepted);
  for (int round = 0; round < 4; ++round) {
    const bool good = round < 2;
    Draft(Chain(2, good ? 0 : 9), SiblingDraw::kWithoutReplacement);
    scheduler_->OnExtraDraft(kId, wanted_.at(0).round, {.tree = Chain(1, 7)});
    const StepPlan plan = Step();
    EXPECT_EQ(last_.drafted_by.also_ngram_lookup, 0);
    EXPECT_THAT(plan.tokens, testing::Not(testing::Contains(7)));
    const bool drafters = last_.drafted_by.by_drafter[3] == last_.drafted;
    const bool from_ngram_lookup = last_.drafted_by.by_ngram_lookup == last_.drafted;
    EXPECT_TRUE(drafters || from_ngram_lookup) << "round " << round;
    EXPECT_EQ(plan.sequences[0].draw,
              from_ngram_lookup ? SiblingDraw::kDeterministic : SiblingDraw::kWithoutReplacement);
  }
}

TEST_F(RoundDraftTest, TheRequestsLimitHoldsWhoeverProposes) {
  forced_ = {1, 2, 3, 4, 5};
  Start(With(true), VerificationMethod::kCoupled, 3);
  forced_.clear();
  EXPECT_EQ(wanted_.at(0).max_nodes, 3);
  NoDraft();
  EXPECT_EQ(Step().rows(), 4) << "of the grammar's";
  EXPECT_EQ(last_.drafted_by.by_grammar, 3);
  NoDraft();
  EXPECT_EQ(Step().rows(), 4) << "of the n-gram lookup's";
  EXPECT_EQ(last_.drafted_by.by_ngram_lookup, 3);
  TokenTree wide = TokenTree::Root(scheduler_->Committed(kId)->back());
  for (int i = 0; i < 9; ++i) wide.Add(0, 20 + i, -3.0f);
  Draft(wide);
  EXPECT_EQ(Step().rows(), 4) << "of a drafter's and the n-gram lookup's";
  EXPECT_EQ(last_.accepted, 3) << "the better draft tokens were kept";
  scheduler_->OnExtraDraft(kId, wanted_.at(0).round, {.tree = Chain(6), .drafter = 5});
  Draft(Chain(5));
  EXPECT_EQ(Step().rows(), 4) << "of two drafters'";
  EXPECT_EQ(wanted_.at(0).max_nodes, 3);
}

TEST_F(RoundDraftTest, TheRequestsLimitHoldsForTreesThatAreDrawn) {
  Start(With(false), VerificationMethod::kRejection, 2);
  Draft(Chain(6), SiblingDraw::kWithReplacement);
  EXPECT_EQ(Step().rows(), 3);
}

TEST_F(RoundDraftTest, ALimitOfZeroIsPlainDecoding) {
  forced_ = {1, 2};
  Start(With(true), VerificationMethod::kCoupled, 0);
  for (int round = 0; round < 4; ++round) {
    EXPECT_THAT(wanted_, IsEmpty());
    EXPECT_EQ(Step().rows(), 1);
  }
}

TEST_F(RoundDraftTest, OnlyTheSourceThatTheRequestAllowsProposes) {
  const DraftSources ngram_lookup = {.grammar = false, .ngram_lookup = true, .drafters = 0};
  forced_ = {9, 9};
  Start(With(true), VerificationMethod::kCoupled, kMaxDraftTokens, ngram_lookup);
  EXPECT_THAT(wanted_, IsEmpty());
  EXPECT_GT(Step().rows(), 8);
  EXPECT_EQ(last_.drafted_by.by_ngram_lookup, last_.drafted);

  const DraftSources third = {.grammar = false, .ngram_lookup = false, .drafters = 1 << 3};
  Start(With(true), VerificationMethod::kCoupled, kMaxDraftTokens, third);
  NoDraft();
  EXPECT_EQ(Step().rows(), 1);
  Draft(Chain(2));
  EXPECT_EQ(Step().rows(), 3);
  EXPECT_EQ(last_.drafted_by.by_drafter[3], 2);
}

TEST_F(RoundDraftTest, ASequenceAsksWhileADrafterOfItsOwnIsConnected) {
  const DraftSources third = {.grammar = false, .ngram_lookup = false, .drafters = 1 << 3};
  Start(With(false), VerificationMethod::kCoupled, kMaxDraftTokens, third);
  NoDraft();
  scheduler_->SetDrafters(1 << 2);
  Step();
  for (int round = 0; round < 3; ++round) {
    EXPECT_THAT(wanted_, IsEmpty()) << "another one is of no use";
    EXPECT_EQ(Step().rows(), 1);
  }
  scheduler_->SetDrafters(1 << 3 | 1 << 2);
  Step();
  EXPECT_EQ(wanted_.size(), 1u);
  EXPECT_EQ(scheduler_->stats().draft_misses, 1u) << "but for the first, nothing was missed";
}

// A text may stop repeating itself: draft tokens that are never accepted are no longer verified
// where rows cost time, and tried again now and then.
TEST_F(RoundDraftTest, RejectedNgramLookupIsVerifiedRarely) {
  SchedulerOptions options = Options();
  options.ngram_lookup = true;
  options.speculation = SpeculationPolicy::kGoodput;
  options.kv_blocks = 600;
  options.max_context = 2000;
  options.max_step_tokens = 64;
  Scheduler scheduler(options);
  SequenceRequest request;
  request.id = kId;
  request.prompt = {1, 2, 3};
  request.max_tokens = 1900;
  ASSERT_TRUE(scheduler.Add(std::move(request), now_).ok());
  int drafted_early = 0, drafted_late = 0;
  for (int round = 0; round < 1500; ++round) {
    const StepPlan plan = std::get<StepPlan>(scheduler.Plan(now_));
    // 1 2 3 and then a new token, so that what followed 1 2 3 before is always wrong.
    const int phase = static_cast<int>(scheduler.Committed(kId)->size()) % 4;
    const TokenId next = phase == 3 ? 10 + round % 900 : 1 + phase;
    // None of the draft tokens is accepted, not even the right ones.
    now_ += base::kMillisecond * (4 + plan.rows()) / 5;
    StepResult result{plan.step, {{kId, {{}, {next}}, {}, {}}}};
    const std::vector<Event> events = scheduler.Commit(&result, now_);
    for (const DraftWanted& want : Of<DraftWanted>(events)) scheduler.OnNoDraft(kId, want.round);
    for (const TokensEvent& tokens : Of<TokensEvent>(events)) {
      (round < 750 ? drafted_early : drafted_late) += tokens.drafted;
    }
  }
  EXPECT_GT(drafted_early, 0);
  EXPECT_LT(drafted_late, 150) << "of 750 rounds";
}

}  // namespace
}  // namespace specfabric::scheduler
