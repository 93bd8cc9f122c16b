// The defaults beside every fixed setting, in simulation: the real scheduler with the times of
// passes of an 8B target and its drafters on H200s (modelled_h200.h). A fixed setting asks for the
// same tree in every round, waits for it and verifies all of it, and drafts ahead or does not.
// Prints for each place, drafter, acceptance and number of clients the tokens/s of a target
//
//   plain    without drafts
//   best     of the best fixed setting, which may be plain
//   default  at the defaults: what is asked for and waited for follows from measurement
//
// Each client sends three requests, one after the other.
//
//   build/bench/scheduler/best_of_bench --place=shared --drafter=model --clients=1,4,16,64

#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "bench/scheduler/modelled_h200.h"
#include "scheduler/simulation/simulator.h"

DEFINE_string(place, "apart,turns,shared",
              "of the drafter: a GPU of its own, in turns with its target, or a process of its own "
              "on the target's GPU");
DEFINE_string(drafter, "model,pard,eagle3,dspark", "kinds of drafter");
DEFINE_string(clients, "1,4,16,64", "of a target");
DEFINE_string(acceptance, ".4,.6,.8",
              "mean chance that a draft token is accepted once those before it are");
DEFINE_int32(prompt_tokens, 500, "of a request");
DEFINE_int32(output_tokens, 1000, "of a request");
DEFINE_bool(fixed, true, "runs the fixed settings too; without, plain counts as the best");
DEFINE_double(round_trip_us, 40, "of a draft request and its reply between machines");

namespace specfabric::scheduler {
namespace {

using base::kMicrosecond;
using base::Nanos;

constexpr DraftPlace kPlaces[] = {DraftPlace::kApart, DraftPlace::kTurns, DraftPlace::kShared};
constexpr int32_t kRequestsEach = 3;
constexpr int32_t kAheadNodes = 200;  // as --ahead_nodes
constexpr const char* kDefaultTree = "best:32:4:12";
constexpr const char* kTrees[] = {"1",          "1,1",         "1,1,1",         "1,1,1,1",
                                  "1,1,1,1,1",  "2,1,1,1",     "1,1,1,1,1,1,1", "2,2,1",
                                  "best:8:4:4", "best:16:4:8", "best:32:4:12"};

SimulationOptions Options(DraftPlace place, const MeasuredDrafter& drafter, double acceptance,
                          int32_t clients) {
  SimulationOptions options;
  SchedulerOptions& s = options.scheduler;
  s.max_context = 2 * (FLAGS_prompt_tokens + FLAGS_output_tokens);
  s.max_sequences = clients;
  s.max_waiting = kRequestsEach * clients;
  s.kv_blocks = static_cast<int32_t>((kMemory - kWeights8B) / kKvToken8B) / s.block_size;
  s.prefix_cache = false;
  options.step = StepOf8B();
  options.acceptance = {.first = acceptance, .spread = 0.15};
  options.place = place;
  options.drafts = 1;
  options.draft_sessions = clients;
  options.draft.kind = drafter.kind;
  options.draft.measured = drafter.passes;
  options.draft.round_trip = static_cast<Nanos>(FLAGS_round_trip_us * kMicrosecond);
  options.states = {.layers = drafter.state_layers,
                    .hidden = kHidden8B,
                    .latency = kStateLatency,
                    .bytes_per_second = kStateBytesPerSecond};
  return options;
}

double Rate(SimulationOptions options, const char* tree, bool ahead, int32_t clients) {
  options.draft.tree = speculation::GrowthPolicy::Parse(tree).value();
  options.draft.ahead.nodes = ahead ? kAheadNodes : 0;
  std::vector<Arrival> arrivals;
  for (int32_t i = 0; i < kRequestsEach * clients; ++i) {
    // Not all end together.
    arrivals.push_back({0, FLAGS_prompt_tokens, FLAGS_output_tokens - 37 * (i % 8)});
  }
  return Simulate(options, arrivals).tokens_per_second;
}

void Compare(DraftPlace place, const MeasuredDrafter& drafter, double acceptance, int32_t clients) {
  const SimulationOptions defaults = Options(place, drafter, acceptance, clients);
  SimulationOptions fixed = defaults;
  fixed.scheduler.speculation = SpeculationPolicy::kAlways;
  SimulationOptions none = fixed;
  none.drafts = 0;
  const double plain = Rate(none, "1", false, clients);
  double best = plain;
  std::string by = "none";
  const bool goes_ahead = !ReadsStates(drafter.kind) && place != DraftPlace::kTurns;
  for (const char* tree : kTrees) {
    if (!FLAGS_fixed) break;
    for (const bool ahead : {false, true}) {
      if (ahead && !goes_ahead) continue;
      const double rate = Rate(fixed, tree, ahead, clients);
      if (rate <= best) continue;
      best = rate;
      by = absl::StrCat(tree, ahead ? ", ahead" : "");
    }
  }
  const double ours = Rate(defaults, kDefaultTree, true, clients);
  std::printf("%7s %7s %10.2f %7d %9.0f %9.0f %9.0f %7.3f %7.3f  %s\n",
              std::string(Name(place)).c_str(), std::string(Name(drafter.kind)).c_str(), acceptance,
              clients, plain, best, ours, ours / best, ours / plain, by.c_str());
  std::fflush(stdout);
}

// Whether the names all are some that `parse` knows.
template <typename Parse>
void CheckNames(const char* flag, const std::string& text, const Parse& parse) {
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const auto parsed = parse(name);
    if (parsed.ok()) continue;
    std::fprintf(stderr, "--%s=%s: %s\n", flag, text.c_str(),
                 std::string(parsed.status().message()).c_str());
    std::exit(2);
  }
}

bool Named(const std::string& flag, std::string_view name) {
  const std::vector<std::string> names = absl::StrSplit(flag, ',');
  return std::find(names.begin(), names.end(), name) != names.end();
}

int Main() {
  CheckNames("place", FLAGS_place, ParseDraftPlace);
  CheckNames("drafter", FLAGS_drafter, ParseDrafterKind);
  const std::vector<double> acceptance = Numbers("acceptance", FLAGS_acceptance, 0, 1);
  const std::vector<double> clients = Numbers("clients", FLAGS_clients, 1, 512);
  std::printf("%7s %7s %10s %7s %9s %9s %9s %7s %7s  %s\n", "place", "drafter", "acceptance",
              "clients", "plain", "best", "default", "/best", "/plain", "the best setting");
  for (const DraftPlace place : kPlaces) {
    if (!Named(FLAGS_place, Name(place))) continue;
    for (const MeasuredDrafter& drafter : MeasuredDrafters(/*block_layers=*/5)) {
      if (!Named(FLAGS_drafter, Name(drafter.kind))) continue;
      for (const double chance : acceptance) {
        for (const double count : clients) {
          Compare(place, drafter, chance, static_cast<int32_t>(count));
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace specfabric::scheduler

int main(int argc, char** argv) {
  gflags::SetUsageMessage("the defaults beside every fixed setting, simulated");
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  return specfabric::scheduler::Main();
}
