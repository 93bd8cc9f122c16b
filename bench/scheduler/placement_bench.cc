// Drafters on a GPU of their own beside drafters on the target's own, in simulation: the real
// scheduler with the times of passes of an 8B target and its drafters on one H200. Every round
// waits for a chain of draft tokens, of the length that gives most tokens/s: how well the goodput
// control does beside the best of fixed trees is another bench's (tests/scheduler/oracle_test.cc).
// Prints for each number of sequences and each drafter
//
//   levels     of the chain
//   tokens/s   of a target, and as a part of those without drafts
//   accepted   draft tokens a round
//   exposed    ms between two steps that drafts take: the target waits, or its device drafts
//   drafting   share of the time that the draft's device works on trees that are waited for
//   states     KiB of hidden states a token on the wire, and MB/s of them
//   KV         thousands of tokens that the target's KV cache has room for
//
// A remote drafter has a GPU of its own, for one target or for --targets of them.
//
//   build/bench/scheduler/placement_bench --acceptance=.6,.8 --sequences=1,8,32

#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "bench/scheduler/modelled_h200.h"
#include "scheduler/simulation/simulator.h"

DEFINE_string(sequences, "1,8,32", "at each target, all from the beginning on");
DEFINE_string(acceptance, ".6,.8",
              "mean chance that a draft token is accepted once those before it are: of every "
              "drafter the same, so that what differs is what drafting costs");
DEFINE_int32(most_levels, 7, "of a chain");
DEFINE_int32(targets, 1, "that share one remote drafter");
DEFINE_int32(prompt_tokens, 500, "of a sequence");
DEFINE_int32(output_tokens, 1000, "of a sequence");
DEFINE_double(round_trip_us, 40, "of a draft request and its reply between machines");
DEFINE_int32(block_layers, 5, "layers of the block drafter");

namespace specfabric::scheduler {
namespace {

using base::kMicrosecond;
using base::Nanos;

struct Place {
  const char* name;
  bool colocated;
  double bytes_per_second;
};
constexpr Place kPlaces[] = {{"co-located", true, 0},
                             {"remote 400 Gb/s", false, kStateBytesPerSecond}};

int64_t KvTokens(const MeasuredDrafter* beside) {
  if (beside == nullptr) return static_cast<int64_t>((kMemory - kWeights8B) / kKvToken8B);
  return static_cast<int64_t>((kMemory - kWeights8B - beside->weights) /
                              (kKvToken8B + beside->kv_token));
}

SimulationOptions Options(int sequences, double acceptance, int64_t kv_tokens) {
  SimulationOptions options;
  SchedulerOptions& s = options.scheduler;
  s.speculation = SpeculationPolicy::kAlways;
  s.max_context = 2 * (FLAGS_prompt_tokens + FLAGS_output_tokens);
  s.max_sequences = sequences;
  s.max_waiting = sequences;
  s.kv_blocks = static_cast<int32_t>(kv_tokens / s.block_size);
  s.prefix_cache = false;
  options.step = StepOf8B();
  options.acceptance = {.first = acceptance, .spread = 0.15};
  return options;
}

SimulationReport Run(const SimulationOptions& options, int sequences) {
  const std::vector<Arrival> arrivals(static_cast<size_t>(sequences) * options.targets,
                                      Arrival{0, FLAGS_prompt_tokens, FLAGS_output_tokens});
  return Simulate(options, arrivals);
}

// The chain that gives most tokens a second.
struct Best {
  int levels = 0;
  SimulationReport report;
};

Best BestChain(SimulationOptions options, int sequences) {
  Best best;
  options.draft.tree.widths.clear();
  for (int levels = 1; levels <= FLAGS_most_levels; ++levels) {
    options.draft.tree.widths.push_back(1);
    const SimulationReport report = Run(options, sequences);
    if (best.levels > 0 && report.tokens_per_second <= best.report.tokens_per_second) continue;
    best = {levels, report};
  }
  return best;
}

void PrintRow(double acceptance, int sequences, const char* drafter, const char* place,
              const Best& best, double plain, int targets, int64_t kv_tokens) {
  const SimulationReport& report = best.report;
  const double rate = report.tokens_per_second / targets;
  const double token = report.states_sent == 0 ? 0
                                               : static_cast<double>(report.state_bytes) /
                                                     static_cast<double>(report.states_sent);
  std::printf("%10.2f %9d %8s %15s %6d %9.0f %6.2f %8.2f %8.2f %9.0f%% %7.0f %7.0f %6lld\n",
              acceptance, sequences, drafter, place, best.levels, rate, rate / plain,
              report.accepted_per_round, 1e3 * report.exposed_draft, 100 * report.drafts_busy,
              token / 1024, 1e-6 * static_cast<double>(report.state_bytes) / report.duration,
              static_cast<long long>(kv_tokens / 1000));
  std::fflush(stdout);
}

void Compare(double acceptance, int sequences) {
  const double plain =
      Run(Options(sequences, acceptance, KvTokens(nullptr)), sequences).tokens_per_second;
  for (const MeasuredDrafter& drafter : MeasuredDrafters(FLAGS_block_layers)) {
    for (const Place& place : kPlaces) {
      const int64_t kv_tokens = KvTokens(place.colocated ? &drafter : nullptr);
      SimulationOptions options = Options(sequences, acceptance, kv_tokens);
      options.drafts = 1;
      options.targets = place.colocated ? 1 : FLAGS_targets;
      options.place = place.colocated ? DraftPlace::kTurns : DraftPlace::kApart;
      options.draft.kind = drafter.kind;
      options.draft.measured = drafter.passes;
      options.draft.round_trip = static_cast<Nanos>(FLAGS_round_trip_us * kMicrosecond);
      options.draft.ahead.nodes = 24;
      options.draft_sessions = sequences * FLAGS_targets;
      options.states = {.layers = drafter.state_layers,
                        .hidden = kHidden8B,
                        .latency = kStateLatency,
                        .bytes_per_second = place.bytes_per_second};
      PrintRow(acceptance, sequences, std::string(Name(drafter.kind)).c_str(), place.name,
               BestChain(options, sequences), plain, options.targets, kv_tokens);
    }
  }
}

int Main() {
  const std::vector<double> acceptance = Numbers("acceptance", FLAGS_acceptance, 0, 1);
  const std::vector<double> sequences = Numbers("sequences", FLAGS_sequences, 1, 512);
  if (FLAGS_most_levels < 1 || FLAGS_most_levels > 16 || FLAGS_targets < 1 ||
      FLAGS_block_layers < 1 || FLAGS_prompt_tokens < 1 || FLAGS_output_tokens < 1) {
    std::fprintf(stderr, "allowed are counts from 1 on, of levels up to 16\n");
    return 2;
  }
  std::printf("%10s %9s %8s %15s %6s %9s %6s %8s %8s %10s %7s %7s %6s\n", "acceptance", "sequences",
              "drafter", "place", "levels", "tokens/s", "/plain", "accepted", "exposed", "drafting",
              "KiB", "MB/s", "KV, k");
  for (const double chance : acceptance) {
    for (const double count : sequences) Compare(chance, static_cast<int>(count));
  }
  return 0;
}

}  // namespace
}  // namespace specfabric::scheduler

int main(int argc, char** argv) {
  gflags::SetUsageMessage("drafters on GPUs of their own beside drafters on their target's");
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  return specfabric::scheduler::Main();
}
