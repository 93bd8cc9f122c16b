// Host time of one round of the scheduler: drafts in, Plan, Commit.

#include <memory>

#include "benchmark/benchmark.h"
#include "scheduler/scheduler.h"
#include "speculation/tree.h"

namespace specfabric::scheduler {
namespace {

constexpr int32_t kVocabulary = 1000;
constexpr int32_t kPrompt = 64;
constexpr int32_t kContext = 4096;

SchedulerOptions Options(int sequences, int nodes) {
  SchedulerOptions options;
  options.max_context = kContext;
  options.kv_blocks = sequences * (kContext / options.block_size + 1);
  options.max_sequences = sequences;
  options.max_step_tokens = std::max(512, sequences * (nodes + 1));
  options.vocabulary = kVocabulary;
  return options;
}

// Below the root a chain of three, which is accepted, and siblings beside it.
speculation::TokenTree Draft(base::TokenId root, int nodes) {
  speculation::TokenTree tree = speculation::TokenTree::Root(root);
  for (int node = 1; node <= nodes; ++node) {
    const int chain = (node - 1) % 2 == 0 && node < 6 ? std::max(0, node - 2) : 0;
    tree.Add(chain, node % kVocabulary, 0.0f);
  }
  return tree;
}

// Accepts the first child three times, if there is one.
StepResult Verify(const StepPlan& plan) {
  StepResult result;
  result.step = plan.step;
  for (const PlanSequence& part : plan.sequences) {
    SequenceResult sequence;
    sequence.id = part.id;
    int node = 0;
    for (int child = 1; part.kind == RowsKind::kTree && child < part.row_count; ++child) {
      if (plan.parents[part.first_row + child] != node || sequence.accepted.path.size() == 3) {
        continue;
      }
      sequence.accepted.path.push_back(child);
      sequence.accepted.tokens.push_back(plan.tokens[part.first_row + child]);
      node = child;
    }
    if (part.samples) sequence.accepted.tokens.push_back(7);
    result.sequences.push_back(std::move(sequence));
  }
  return result;
}

void Fill(int sequences, Scheduler* scheduler, std::vector<DraftWanted>* wanted) {
  for (int id = 0; id < sequences; ++id) {
    SequenceRequest request;
    request.id = id + 1;
    request.prompt.assign(kPrompt, 1);
    request.max_tokens = kContext;
    if (!scheduler->Add(std::move(request), 0).ok()) std::abort();
  }
  wanted->clear();
  while (static_cast<int>(wanted->size()) < sequences) {
    const auto plan = scheduler->Plan(0);
    for (const Event& event : scheduler->Commit(Verify(std::get<StepPlan>(plan)), 0)) {
      if (const auto* draft = std::get_if<DraftWanted>(&event)) wanted->push_back(*draft);
    }
  }
}

void BM_Round(benchmark::State& state) {
  const int sequences = static_cast<int>(state.range(0)), nodes = static_cast<int>(state.range(1));
  std::unique_ptr<Scheduler> scheduler;
  std::vector<DraftWanted> wanted;
  int64_t rows = 0, plans = 0;
  for (auto _ : state) {
    if (static_cast<int>(wanted.size()) < sequences) {
      state.PauseTiming();  // an output has reached the context: begin again
      scheduler = std::make_unique<Scheduler>(Options(sequences, nodes));
      Fill(sequences, scheduler.get(), &wanted);
      state.ResumeTiming();
    }
    for (const DraftWanted& draft : wanted) {
      scheduler->OnDraft(draft.id, draft.round,
                         {Draft(scheduler->Committed(draft.id)->back(), nodes)}, 0);
    }
    const auto planned = scheduler->Plan(0);
    const StepPlan& plan = std::get<StepPlan>(planned);
    rows += plan.rows();
    ++plans;
    wanted.clear();
    for (const Event& event : scheduler->Commit(Verify(plan), 0)) {
      if (const auto* draft = std::get_if<DraftWanted>(&event)) wanted.push_back(*draft);
    }
  }
  state.counters["rows"] = static_cast<double>(rows) / static_cast<double>(plans);
}
BENCHMARK(BM_Round)->Args({1, 16})->Args({64, 4})->Args({64, 16})->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace specfabric::scheduler
