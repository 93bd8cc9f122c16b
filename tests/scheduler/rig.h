#ifndef SPECFABRIC_TESTS_SCHEDULER_RIG_H_
#define SPECFABRIC_TESTS_SCHEDULER_RIG_H_

// Helpers for tests of the scheduler's policy: small options, and a fake group that executes every
// plan at once and checks it.

#include <optional>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/scheduler.h"
#include "tests/scheduler/fake_group.h"

namespace specfabric::scheduler {

inline SchedulerOptions Options() {
  SchedulerOptions options;
  options.kv_blocks = 100;
  options.block_size = 4;
  options.max_context = 64;
  options.max_sequences = 8;
  options.max_step_tokens = 32;
  options.max_tree_nodes = 16;
  options.vocabulary = 1000;
  options.misses.probe_rounds = 3;
  options.speculation = SpeculationPolicy::kAlways;  // no decisions by measured times
  return options;
}

// Prompts of different ids have no common prefix.
inline SequenceRequest Request(base::SequenceId id, int prompt, int max_tokens) {
  SequenceRequest request;
  request.id = id;
  request.prompt.assign(prompt, static_cast<base::TokenId>(id));
  request.max_tokens = max_tokens;
  return request;
}

template <typename T>
std::vector<T> Of(const std::vector<Event>& events) {
  std::vector<T> result;
  for (const Event& event : events) {
    if (const T* typed = std::get_if<T>(&event)) result.push_back(*typed);
  }
  return result;
}

// A scheduler and a fake group without faults; one call executes a step.
struct Rig {
  explicit Rig(const SchedulerOptions& given = Options())
      : options(given), scheduler(given), group(given) {}

  StepPlan MustPlan(base::Nanos now) {
    auto planned = scheduler.Plan(now);
    if (StepPlan* plan = std::get_if<StepPlan>(&planned)) return *plan;
    ADD_FAILURE() << "nothing was planned";
    return {};
  }
  std::optional<base::Nanos> WaitTime(base::Nanos now) {
    auto planned = scheduler.Plan(now);
    const WaitUntil* wait = std::get_if<WaitUntil>(&planned);
    EXPECT_NE(wait, nullptr);
    return wait == nullptr ? std::nullopt : std::optional<base::Nanos>(wait->time);
  }
  std::vector<Event> Commit(const StepPlan& plan, base::Nanos now) {
    StepResult result = group.Execute(plan, scheduler);
    std::vector<Event> events = scheduler.Commit(&result, now);
    EXPECT_THAT(group.errors(), testing::IsEmpty());
    for (const SequenceEnded& ended : Of<SequenceEnded>(events)) group.OnEnded(ended.id);
    return events;
  }
  std::vector<Event> Step(base::Nanos now) { return Commit(MustPlan(now), now); }
  // A chain of right draft tokens below the last committed token, each with this score.
  speculation::TokenTree Chain(base::SequenceId id, int nodes, float score = 0.0f) {
    std::vector<base::TokenId> text = *scheduler.Committed(id);
    speculation::TokenTree tree = speculation::TokenTree::Root(text.back());
    for (int i = 0; i < nodes; ++i) {
      text.push_back(NextToken(text, options.vocabulary));
      tree.Add(i, text.back(), score);
    }
    return tree;
  }

  SchedulerOptions options;
  Scheduler scheduler;
  FakeGroup group;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_TESTS_SCHEDULER_RIG_H_
