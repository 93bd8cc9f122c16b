// Host time of one round of the scheduler: drafts in, Plan, Commit; and how often Plan and Commit
// allocate.

#include <cstdlib>
#include <ctime>
#include <memory>

#include "benchmark/benchmark.h"
#include "scheduler/scheduler.h"
#include "speculation/tree.h"
#include "tests/scheduler/counted_allocations.h"

namespace specfabric::scheduler {
namespace {

constexpr int32_t kVocabulary = 1000;
constexpr int32_t kPrompt = 64;
constexpr int32_t kContext = 4096;
// Rows are free, as on a GPU, so that all draft tokens are verified.
constexpr base::Nanos kReply = 100 * base::kMicrosecond, kStep = 20 * base::kMillisecond;

SchedulerOptions Options(int sequences, int nodes) {
  SchedulerOptions options;
  options.max_context = kContext;
  options.kv_blocks = sequences * (kContext / options.block_size + 1);
  options.max_sequences = sequences;
  options.max_step_tokens = std::max(512, sequences * (nodes + 1));
  options.vocabulary = kVocabulary;
  return options;
}

// A chain of three below the root, which is accepted, and other nodes beside it.
speculation::TokenTree Draft(base::TokenId root, int nodes) {
  speculation::TokenTree tree = speculation::TokenTree::Root(root);
  for (int node = 1; node <= nodes; ++node) {
    const int chain = (node - 1) % 2 == 0 && node < 6 ? std::max(0, node - 2) : 0;
    tree.Add(chain, node % kVocabulary, -0.2f * static_cast<float>(node % 4));
  }
  return tree;
}

// Accepts the first child three times, if there is one. As in a target, the result keeps its
// memory.
void Verify(const StepPlan& plan, StepResult* result) {
  result->step = plan.step;
  result->sequences.Resize(plan.sequences.size());
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlanSequence& part = plan.sequences[i];
    SequenceResult& sequence = result->sequences[i];
    sequence.id = part.id;
    sequence.accepted.path.clear();
    sequence.accepted.tokens.clear();
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
  }
}

void Fill(int sequences, Scheduler* scheduler, base::Nanos* now, std::vector<DraftWanted>* wanted) {
  for (int id = 0; id < sequences; ++id) {
    SequenceRequest request;
    request.id = id + 1;
    request.prompt.assign(kPrompt, 1);
    request.prompt[0] = id % kVocabulary;  // nothing is shared
    request.prompt[1] = id / kVocabulary;
    request.max_tokens = kContext;
    if (!scheduler->Add(std::move(request), *now).ok()) std::abort();
  }
  wanted->clear();
  StepResult result;
  while (scheduler->stats().waiting > 0) {
    const auto plan = scheduler->Plan(*now);
    *now += kStep;
    Verify(std::get<StepPlan>(plan), &result);
    for (const Event& event : scheduler->Commit(&result, *now)) {
      if (const auto* draft = std::get_if<DraftWanted>(&event)) wanted->push_back(*draft);
    }
  }
}

// CPU time of this thread, without that of other processes.
double Seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Only Plan and Commit are timed, not the making of drafts and results.
void BM_Round(benchmark::State& state) {
  const int sequences = static_cast<int>(state.range(0)), nodes = static_cast<int>(state.range(1));
  std::unique_ptr<Scheduler> scheduler;
  std::vector<DraftWanted> wanted;
  StepResult result;
  base::Nanos now = 0;
  int64_t rows = 0, plans = 0, allocated = 0;
  double plan_seconds = 0;
  for (auto _ : state) {
    if (scheduler == nullptr || scheduler->stats().running < sequences) {
      scheduler = std::make_unique<Scheduler>(Options(sequences, nodes));
      Fill(sequences, scheduler.get(), &now, &wanted);
    }
    now += kReply;
    for (const DraftWanted& draft : wanted) {
      scheduler->OnDraft(draft.id, draft.round,
                         {Draft(scheduler->Committed(draft.id)->back(), nodes)}, now);
    }
    allocated -= CountedAllocations();
    const double start = Seconds();
    auto planned = scheduler->Plan(now);
    const double mid = Seconds();
    allocated += CountedAllocations();
    StepPlan& plan = std::get<StepPlan>(planned);
    rows += plan.rows();
    ++plans;
    Verify(plan, &result);
    allocated -= CountedAllocations();
    const double resume = Seconds();
    now += kStep;
    std::vector<Event> events = scheduler->Commit(&result, now);
    const double end = Seconds();
    allocated += CountedAllocations();
    state.SetIterationTime(mid - start + end - resume);
    plan_seconds += mid - start;
    wanted.clear();
    for (const Event& event : events) {
      if (const auto* draft = std::get_if<DraftWanted>(&event)) wanted.push_back(*draft);
    }
    scheduler->Recycle(std::move(plan));
    scheduler->Recycle(std::move(events));
  }
  state.counters["rows"] = static_cast<double>(rows) / static_cast<double>(plans);
  state.counters["plan_us"] = 1e6 * plan_seconds / static_cast<double>(plans);
  state.counters["allocations"] = static_cast<double>(allocated) / static_cast<double>(plans);
}
// Runs sequences to their end, so that every run has the same contexts: a round commits one token,
// or four.
void Lives(benchmark::internal::Benchmark* round) {
  round->UseManualTime()->Unit(benchmark::kMicrosecond)->Repetitions(5)->ReportAggregatesOnly();
}
constexpr int kPlainRounds = kContext - kPrompt, kRounds = kPlainRounds / 4;
BENCHMARK(BM_Round)->Args({64, 0})->Args({1024, 0})->Iterations(kPlainRounds)->Apply(Lives);
BENCHMARK(BM_Round)
    ->Args({1, 16})
    ->Args({64, 4})
    ->Args({64, 16})
    ->Args({1024, 4})
    ->Iterations(kRounds)
    ->Apply(Lives);

}  // namespace
}  // namespace specfabric::scheduler
