// In the steady state, with running sequences only, Plan and Commit allocate nothing: plans and
// events reuse recycled memory, and a sequence reserves memory for its whole life at its admission.

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/scheduler.h"
#include "tests/scheduler/counted_allocations.h"
#include "tests/scheduler/fake_group.h"

namespace specfabric::scheduler {
namespace {

constexpr int32_t kVocabulary = 1000, kSequences = 24, kContext = 1024;
constexpr int kWarmUp = 40, kRounds = 150;
constexpr base::Nanos kStep = 10 * base::kMillisecond;

// One draft token is right, and perhaps its child; the two others are wrong.
speculation::Draft MakeDraft(std::vector<base::TokenId> text) {
  speculation::TokenTree tree = speculation::TokenTree::Root(text.back());
  text.push_back(NextToken(text, kVocabulary));
  const int wrong = tree.Add(0, (text.back() + 1) % kVocabulary, -1.5f);
  const int right = tree.Add(0, text.back(), -0.3f);
  tree.Add(wrong, 7, -0.4f);
  const bool child_is_right = text.size() % 3 > 0;
  tree.Add(right, (NextToken(text, kVocabulary) + !child_is_right) % kVocabulary, -0.5f);
  return {.tree = std::move(tree)};
}

class AllocationTest : public testing::TestWithParam<SpeculationPolicy> {
 protected:
  AllocationTest() {
    options_.max_context = kContext;
    options_.kv_blocks = kSequences * (kContext / options_.block_size + 1);
    options_.max_sequences = kSequences;
    options_.max_step_tokens = 256;
    options_.vocabulary = kVocabulary;
    options_.speculation = GetParam();
    scheduler_.emplace(options_);
    group_.emplace(options_);
    for (int id = 1; id <= kSequences; ++id) {
      SequenceRequest request;
      request.id = id;
      request.prompt.assign(20 + id, id);
      request.max_tokens = kContext;
      EXPECT_TRUE(scheduler_->Add(std::move(request), 0).ok());
    }
  }

  // One step; returns how often Plan and Commit allocated.
  int64_t Step() {
    const int64_t before_plan = CountedAllocations();
    auto next = scheduler_->Plan(now_);
    int64_t allocated = CountedAllocations() - before_plan;
    if (const auto* until = std::get_if<WaitUntil>(&next)) {
      now_ = until->time;
      return allocated;
    }
    StepPlan& plan = std::get<StepPlan>(next);
    rows_ += plan.rows();
    ++steps_;
    StepResult result = group_->Execute(plan, *scheduler_);
    now_ += kStep;
    const int64_t before_commit = CountedAllocations();
    std::vector<Event> events = scheduler_->Commit(&result, now_);
    allocated += CountedAllocations() - before_commit;
    for (const Event& event : events) {
      if (const auto* wanted = std::get_if<DraftWanted>(&event)) {
        scheduler_->OnDraft(wanted->id, wanted->round,
                            MakeDraft(*scheduler_->Committed(wanted->id)),
                            now_ + base::kMicrosecond);
      }
    }
    now_ += 2 * base::kMicrosecond;
    scheduler_->Recycle(std::move(plan));
    scheduler_->Recycle(std::move(events));
    return allocated;
  }

  SchedulerOptions options_;
  std::optional<Scheduler> scheduler_;
  std::optional<FakeGroup> group_;
  base::Nanos now_ = 0;
  int64_t rows_ = 0, steps_ = 0;
};

TEST_P(AllocationTest, NoneInTheSteadyState) {
  for (int i = 0; i < kWarmUp; ++i) Step();
  rows_ = steps_ = 0;
  int64_t allocated = 0;
  for (int i = 0; i < kRounds; ++i) allocated += Step();
  EXPECT_EQ(allocated, 0);
  EXPECT_EQ(scheduler_->stats().running, kSequences);
  EXPECT_GT(rows_, 2 * kSequences * steps_) << "hardly any draft token was verified";
  EXPECT_TRUE(group_->errors().empty());
}

INSTANTIATE_TEST_SUITE_P(Policies, AllocationTest,
                         testing::Values(SpeculationPolicy::kGoodput, SpeculationPolicy::kAlways));

}  // namespace
}  // namespace specfabric::scheduler
