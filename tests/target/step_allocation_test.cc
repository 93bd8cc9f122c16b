// In the steady state, when no sequence starts or ends, a whole step of one CPU rank allocates
// nothing: plan, batch, forward pass, verification and commit reuse their buffers.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/scheduler.h"
#include "target/rank_group.h"
#include "tests/model/checkpoint_writer.h"
#include "tests/scheduler/counted_allocations.h"

namespace specfabric::target {
namespace {

using base::TokenId;
using speculation::SiblingDraw;
using speculation::VerificationMethod;

constexpr int32_t kSequences = 5, kContext = 320, kBlockSize = 16;
constexpr int kWarmUp = 24, kSteps = 40;

struct Case {
  std::string name;
  bool speculates = true;
  VerificationMethod verification = VerificationMethod::kCoupled;
  SiblingDraw draw = SiblingDraw::kCoupledTopK;
  int32_t top_k = 0;
  float top_p = 1.0f;
};

// A tree of four draft tokens. The middle branch is the continuation in `text`, the text of plain
// decoding, as far as that is known.
speculation::Draft MakeDraft(const std::vector<TokenId>& committed,
                             const std::vector<TokenId>& text, SiblingDraw draw,
                             int32_t vocabulary) {
  const size_t at = committed.size();
  const TokenId next = at < text.size() ? text[at] : 3;
  const TokenId after = at + 1 < text.size() ? text[at + 1] : 5;
  speculation::Draft draft;
  draft.draw = draw;
  draft.tree = speculation::TokenTree::Root(committed.back());
  draft.tree.Add(0, (next + 1) % vocabulary, -1.5f);
  const int right = draft.tree.Add(0, next, -0.3f);
  draft.tree.Add(0, (next + 2) % vocabulary, -1.7f);
  draft.tree.Add(right, after, -0.2f);
  return draft;
}

class StepAllocationTest : public testing::TestWithParam<Case> {
 protected:
  StepAllocationTest() {
    model::WriteCheckpoint(dir_.path(), model::OddConfig(), 1);
    RankGroupOptions options;
    options.model_dir = dir_.path();
    options.rank.dtype = model::DataType::kBFloat16;
    options.rank.block_size = kBlockSize;
    options.rank.kv_blocks = kSequences * (kContext / kBlockSize + 1);
    auto ranks = RankGroup::Start(options);
    EXPECT_TRUE(ranks.ok()) << ranks.status();
    ranks_ = *std::move(ranks);
    vocabulary_ = ranks_->config().vocabulary;
    // Two rows, of the root's children and of their child, in which every token is alike.
    draft_probs_bytes_.assign(2 * vocabulary_, 0x3F80);
    const speculation::DraftProbsShape shape = {2, vocabulary_, vocabulary_};
    auto opened = speculation::DraftProbs::Open(
        shape, {reinterpret_cast<const uint8_t*>(draft_probs_bytes_.data()), shape.bytes()});
    EXPECT_TRUE(opened.ok()) << opened.status();
    draft_probs_ = *std::move(opened);
  }

  // Sequences that run through all steps of a test.
  void Start(const Case& what) {
    what_ = what;
    scheduler::SchedulerOptions options;
    options.vocabulary = vocabulary_;
    options.max_context = kContext;
    options.block_size = kBlockSize;
    options.kv_blocks = kSequences * (kContext / kBlockSize + 1);
    options.max_sequences = kSequences;
    options.max_step_tokens = 128;
    options.speculation = scheduler::SpeculationPolicy::kAlways;
    scheduler_.emplace(options);
    for (int32_t id = 1; id <= kSequences; ++id) {
      scheduler::SequenceRequest request;
      request.id = id;
      request.prompt.assign(10 + id, id);
      request.max_tokens = kContext;
      request.speculate = what.speculates;
      request.verification = what.verification;
      request.sampling.seed = id;
      request.sampling.temperature = 0.8f;
      request.sampling.top_k = what.top_k;
      request.sampling.top_p = what.top_p;
      ASSERT_TRUE(scheduler_->Add(std::move(request), 0).ok());
    }
  }

  // One step; returns how often it allocated.
  int64_t Step() {
    const int64_t before = CountedAllocations();
    auto next = scheduler_->Plan(now_);
    if (const auto* until = std::get_if<scheduler::WaitUntil>(&next)) {
      now_ = until->time;
      return CountedAllocations() - before;
    }
    auto& plan = std::get<scheduler::StepPlan>(next);
    given_.assign(plan.sequences.size(), nullptr);
    for (size_t s = 0; s < plan.sequences.size(); ++s) {
      if (ReadsDraftProbs(plan.sequences[s])) given_[s] = &draft_probs_;
    }
    StepTimes times;
    const absl::Status ran = ranks_->Run(plan, {.draft_probs = given_}, &times, &result_);
    now_ += base::kMillisecond;
    std::vector<scheduler::Event> events = scheduler_->Commit(&result_, now_);
    int64_t allocated = CountedAllocations() - before;
    EXPECT_TRUE(ran.ok()) << ran;
    rows_ += plan.rows();
    for (const scheduler::Event& event : events) {
      if (const auto* wanted = std::get_if<scheduler::DraftWanted>(&event)) Answer(*wanted);
      if (const auto* tokens = std::get_if<scheduler::TokensEvent>(&event)) {
        accepted_ += tokens->accepted;
      }
    }
    const int64_t before_recycling = CountedAllocations();
    scheduler_->Recycle(std::move(plan));
    scheduler_->Recycle(std::move(events));
    return allocated + CountedAllocations() - before_recycling;
  }

  void Answer(const scheduler::DraftWanted& wanted) {
    static const std::vector<TokenId> kUnknown;
    const size_t known = static_cast<size_t>(wanted.id);
    speculation::Draft draft =
        MakeDraft(*scheduler_->Committed(wanted.id),
                  known < texts_.size() ? texts_[known] : kUnknown, what_.draw, vocabulary_);
    if (speculation::NeedsDraftRows(what_.verification, what_.draw)) {
      draft.draft_row = speculation::DraftRows(draft.tree);
    }
    scheduler_->OnDraft(wanted.id, wanted.round, std::move(draft), now_);
  }

  // All texts, by the sequence's id, after so many steps.
  std::vector<std::vector<TokenId>> TextsAfter(int steps) {
    for (int i = 0; i < steps; ++i) Step();
    std::vector<std::vector<TokenId>> texts(1);
    for (int32_t id = 1; id <= kSequences; ++id) texts.push_back(*scheduler_->Committed(id));
    return texts;
  }

  const model::TempDir dir_;
  std::unique_ptr<RankGroup> ranks_;
  int32_t vocabulary_ = 0;
  std::vector<uint16_t> draft_probs_bytes_;
  speculation::DraftProbs draft_probs_;
  Case what_;
  std::optional<scheduler::Scheduler> scheduler_;
  std::vector<const speculation::DraftProbs*> given_;
  scheduler::StepResult result_;
  base::Nanos now_ = 0;
  int64_t rows_ = 0, accepted_ = 0;
  std::vector<std::vector<TokenId>> texts_;  // of plain decoding, by id
};

TEST_P(StepAllocationTest, NoneInTheSteadyState) {
  const Case& what = GetParam();
  if (what.speculates) {
    Case plain = what;
    plain.speculates = false;
    Start(plain);
    texts_ = TextsAfter(kContext - 40);
    accepted_ = 0;
  }
  Start(what);
  for (int i = 0; i < kWarmUp; ++i) Step();
  rows_ = 0;
  int64_t allocated = 0;
  for (int i = 0; i < kSteps; ++i) allocated += Step();
  EXPECT_EQ(allocated, 0);
  EXPECT_EQ(scheduler_->stats().running, kSequences) << "a sequence has ended";
  if (!what.speculates) return;
  EXPECT_GT(rows_, 4 * kSequences * kSteps) << "hardly any tree was verified";
  EXPECT_GT(accepted_, 0);
  if (what.verification != VerificationMethod::kCoupled) return;
  for (int32_t id = 1; id <= kSequences; ++id) {
    const std::vector<TokenId>& text = *scheduler_->Committed(id);
    ASSERT_LE(text.size(), texts_[id].size());
    EXPECT_TRUE(std::equal(text.begin(), text.end(), texts_[id].begin())) << id;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, StepAllocationTest,
    testing::Values(Case{.name = "Decode", .speculates = false}, Case{.name = "Coupled"},
                    Case{.name = "CoupledTopK", .top_k = 20},
                    Case{.name = "CoupledTopP", .top_p = 0.9f},
                    Case{.name = "Rejection",
                         .verification = VerificationMethod::kRejection,
                         .draw = SiblingDraw::kWithoutReplacement},
                    Case{.name = "RejectionTopP",
                         .verification = VerificationMethod::kRejection,
                         .draw = SiblingDraw::kWithoutReplacement,
                         .top_p = 0.9f},
                    Case{.name = "RejectionDeterministic",
                         .verification = VerificationMethod::kRejection,
                         .draw = SiblingDraw::kDeterministic},
                    Case{.name = "Traversal",
                         .verification = VerificationMethod::kTraversal,
                         .draw = SiblingDraw::kWithReplacement},
                    Case{.name = "Typical", .verification = VerificationMethod::kTypical}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace specfabric::target
