// `specfabric simulate`: runs the scheduler and the draft router with modelled times and prints a
// row for each load, number of targets and number of drafts.

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "app/flag_checks.h"
#include "app/flags.h"
#include "app/options.h"
#include "app/roles.h"
#include "draft/speculation_cache.h"
#include "nlohmann/json.hpp"
#include "scheduler/simulation/simulator.h"

namespace specfabric::app {

namespace {

constexpr DurationRange kModelledRange = {.most = absl::Hours(1)};

// "0,1,2.5" as numbers from `least` to `most`.
absl::StatusOr<std::vector<double>> Numbers(const std::string& flag, const std::string& value,
                                            double least, double most) {
  std::vector<double> numbers;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(value, ','))) {
    double number = 0;
    if (!absl::SimpleAtod(part, &number) || !(number >= least && number <= most)) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", value,
                                                     ": allowed are numbers from ", least, " to ",
                                                     most, ", separated by commas"));
    }
    numbers.push_back(number);
  }
  return numbers;
}

// The numbers of targets and drafts of each row.
absl::StatusOr<std::vector<std::pair<int32_t, int32_t>>> Sizes(scheduler::DraftPlace place) {
  const bool apart = place == scheduler::DraftPlace::kApart;
  const auto targets =
      Numbers("num_targets", FLAGS_num_targets.empty() ? "1" : FLAGS_num_targets, 1, 256);
  if (!targets.ok()) return targets.status();
  std::vector<std::pair<int32_t, int32_t>> sizes;
  for (const double number : *targets) {
    const auto groups = static_cast<int32_t>(number);
    const std::string usual = apart ? "0,1,2,4" : absl::StrCat("0,", groups);
    const auto drafts =
        Numbers("num_drafts", FLAGS_num_drafts.empty() ? usual : FLAGS_num_drafts, 0, 4096);
    if (!drafts.ok()) return drafts.status();
    for (const double workers : *drafts) {
      sizes.emplace_back(groups, static_cast<int32_t>(workers));
      if (apart || workers == 0 || sizes.back().second == groups) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--num_drafts=", FLAGS_num_drafts, " with --num_targets=", groups,
                       " and --draft_place=", FLAGS_draft_place, ": allowed are 0 and ", groups));
    }
  }
  return sizes;
}

struct Limit {
  const char* flag;
  double value, least, most;
};

absl::Status CheckLimits() {
  for (const Limit& l : std::vector<Limit>{
           {"requests", static_cast<double>(FLAGS_requests), 1, 1e7},
           {"prompt_tokens", static_cast<double>(FLAGS_prompt_tokens), 1, 1e6},
           {"output_tokens", static_cast<double>(FLAGS_output_tokens), 1, 1e6},
           {"acceptance", FLAGS_acceptance, 0, 1},
           {"sibling_acceptance", FLAGS_sibling_acceptance, 0, 1},
           {"acceptance_spread", FLAGS_acceptance_spread, 0, 1},
           {"max_sequences", static_cast<double>(FLAGS_max_sequences), 1, 4096},
           {"max_step_tokens", static_cast<double>(FLAGS_max_step_tokens), 64, 65536},
           {"max_sessions", static_cast<double>(FLAGS_max_sessions), 1, 65536},
           {"ahead_nodes", static_cast<double>(FLAGS_ahead_nodes), 1,
            draft::SpeculationCache::kSlots - 1},
           {"ahead_rows", static_cast<double>(FLAGS_ahead_rows), 1, 4096},
           {"kv_blocks", static_cast<double>(FLAGS_kv_blocks), 0, 1 << 26},
           {"block_size", static_cast<double>(FLAGS_block_size), 1, 256}}) {
    if (l.value >= l.least && l.value <= l.most) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", l.flag, "=", l.value, ": allowed are ", l.least, " to ", l.most));
  }
  return absl::OkStatus();
}

struct ModelledTimes {
  base::Nanos max_draft_wait = 0;
  scheduler::StepCost step;
  scheduler::DraftCost draft;
  scheduler::StateCost states;
  scheduler::DraftPlace place = scheduler::DraftPlace::kApart;
};

// A flag's duration in nanoseconds and their fractions: costs of a row are multiplied by many rows.
absl::Status ParseRowCost(absl::string_view flag, const std::string& value, double* nanos) {
  const auto duration = ParseDurationFlag(flag, value, kModelledRange);
  if (!duration.ok()) return duration.status();
  *nanos = absl::ToDoubleNanoseconds(*duration);
  return absl::OkStatus();
}

absl::StatusOr<ModelledTimes> TimeFlags() {
  ModelledTimes times;
  for (absl::Status status :
       {ParseDurationFlags(
            {{"max_draft_wait", FLAGS_max_draft_wait, &times.max_draft_wait, kDraftWaitRange},
             {"step_fixed", FLAGS_step_fixed, &times.step.fixed, kModelledRange},
             {"step_weights", FLAGS_step_weights, &times.step.weights, kModelledRange},
             {"draft_weights", FLAGS_draft_weights, &times.draft.weights, kModelledRange},
             {"round_trip", FLAGS_round_trip, &times.draft.round_trip, kModelledRange},
             {"state_latency", FLAGS_state_latency, &times.states.latency, kModelledRange}}),
        ParseRowCost("step_row", FLAGS_step_row, &times.step.row_ns),
        ParseRowCost("step_context", FLAGS_step_context, &times.step.context_ns),
        ParseRowCost("draft_row", FLAGS_draft_row, &times.draft.row_ns)}) {
    if (!status.ok()) return status;
  }
  return times;
}

// "3x4096" as layers and hidden size.
absl::Status ParseStateShape(const std::string& value, scheduler::StateCost* states) {
  const std::vector<std::string> sides = absl::StrSplit(value, 'x');
  if (sides.size() == 2 && absl::SimpleAtoi(sides[0], &states->layers) &&
      absl::SimpleAtoi(sides[1], &states->hidden) && states->layers >= 1 &&
      states->layers <= 1024 && states->hidden >= 1 && states->hidden <= 1 << 20) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--state_shape=", value,
                   ": allowed are LAYERSxHIDDEN, with 1 to 1024 layers of 1 to 1048576"));
}

absl::Status DrafterFlags(ModelledTimes* times) {
  const auto kind = scheduler::ParseDrafterKind(FLAGS_drafter);
  if (!kind.ok()) return Flag("drafter", FLAGS_drafter, kind.status());
  times->draft.kind = *kind;
  const auto place = scheduler::ParseDraftPlace(FLAGS_draft_place);
  if (!place.ok()) return Flag("draft_place", FLAGS_draft_place, place.status());
  times->place = *place;
  const auto bandwidth =
      ParseSizeFlag("state_bandwidth", FLAGS_state_bandwidth, 0, uint64_t{1} << 50);
  if (!bandwidth.ok()) return bandwidth.status();
  times->states.bytes_per_second = static_cast<double>(*bandwidth);
  return ParseStateShape(FLAGS_state_shape, &times->states);
}

// Other policies of drafting ahead differ by a few hundredths of the hits, and are not modelled.
scheduler::AheadCost Ahead() {
  return {.nodes = FLAGS_ahead ? FLAGS_ahead_nodes : 0, .rows = FLAGS_ahead_rows};
}

absl::StatusOr<std::vector<scheduler::Arrival>> ReadTrace() {
  std::ifstream file(FLAGS_workload_trace);
  if (!file) {
    return absl::InvalidArgumentError(
        absl::StrCat("--workload_trace=", FLAGS_workload_trace, ": cannot be read"));
  }
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  auto arrivals = scheduler::ParseArrivals(text);
  if (!arrivals.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--workload_trace=", FLAGS_workload_trace, ": ", arrivals.status().message()));
  }
  if (arrivals->empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--workload_trace=", FLAGS_workload_trace, ": no request"));
  }
  return arrivals;
}

int32_t LongestContext(const std::vector<scheduler::Arrival>& arrivals) {
  int32_t longest = 0;
  for (const auto& arrival : arrivals) longest = std::max(longest, arrival.prompt + arrival.output);
  return longest + 1;
}

scheduler::SimulationOptions Options(const std::vector<scheduler::Arrival>& arrivals,
                                     const speculation::GrowthPolicy& tree,
                                     scheduler::SpeculationPolicy policy,
                                     const ModelledTimes& times) {
  scheduler::SimulationOptions options;
  scheduler::SchedulerOptions& s = options.scheduler;
  s.speculation = policy;
  s.max_context = LongestContext(arrivals);
  s.block_size = FLAGS_block_size;
  s.max_sequences = FLAGS_max_sequences;
  s.max_step_tokens = FLAGS_max_step_tokens;
  s.max_waiting = static_cast<int32_t>(arrivals.size());
  const int32_t blocks_each = s.max_context / s.block_size + 1;
  s.kv_blocks = FLAGS_kv_blocks > 0 ? FLAGS_kv_blocks : blocks_each * FLAGS_max_sequences;
  s.max_draft_wait = times.max_draft_wait;
  s.min_draft_wait = std::min(s.min_draft_wait, s.max_draft_wait);
  options.step = times.step;
  options.draft = times.draft;
  options.states = times.states;
  options.place = times.place;
  options.draft.tree = tree;
  options.draft_sessions = FLAGS_max_sessions;
  options.acceptance = {.first = FLAGS_acceptance,
                        .further = FLAGS_sibling_acceptance,
                        .spread = FLAGS_acceptance_spread};
  options.seed = FLAGS_seed;
  return options;
}

nlohmann::json ToJson(const scheduler::Percentiles& p) {
  return {{"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}};
}

void PrintHeader() {
  std::printf("%8s %7s %6s %9s %26s %26s %8s %13s %7s %8s %8s\n", "", "", "", "",
              "time to first token, ms", "time a token after it, ms", "accepted", "busy, %",
              "drafts", "exposed", "states");
  std::printf("%8s %7s %6s %9s %8s %8s %8s %8s %8s %8s %8s %6s %6s %7s %8s %8s\n", "rate",
              "targets", "drafts", "tokens/s", "p50", "p90", "p99", "p50", "p90", "p99", "a round",
              "target", "drafts", "missed%", "ms", "MB/s");
}

void Print(double rate, int targets, int drafts, const scheduler::SimulationReport& report) {
  if (FLAGS_json) {
    const nlohmann::json line = {{"rate", rate},
                                 {"targets", targets},
                                 {"drafts", drafts},
                                 {"requests", report.requests},
                                 {"refused", report.refused},
                                 {"output_tokens", report.output_tokens},
                                 {"seconds", report.duration},
                                 {"tokens_per_second", report.tokens_per_second},
                                 {"ttft_seconds", ToJson(report.ttft)},
                                 {"tpot_seconds", ToJson(report.tpot)},
                                 {"accepted_per_round", report.accepted_per_round},
                                 {"target_busy", report.target_busy},
                                 {"drafts_busy", report.drafts_busy},
                                 {"draft_hits", report.draft_hits},
                                 {"draft_misses", report.draft_misses},
                                 {"draft_skips", report.draft_skips},
                                 {"draft_moves", report.draft_moves},
                                 {"exposed_draft_seconds", report.exposed_draft},
                                 {"states_sent", report.states_sent},
                                 {"state_bytes", report.state_bytes}};
    std::puts(line.dump().c_str());
    return;
  }
  std::printf(
      "%8.4g %7d %6d %9.1f %8.1f %8.1f %8.1f %8.2f %8.2f %8.2f %8.2f %6.0f %6.0f %7.0f %8.2f "
      "%8.1f\n",
      rate, targets, drafts, report.tokens_per_second, 1e3 * report.ttft.p50, 1e3 * report.ttft.p90,
      1e3 * report.ttft.p99, 1e3 * report.tpot.p50, 1e3 * report.tpot.p90, 1e3 * report.tpot.p99,
      report.accepted_per_round, 100 * report.target_busy, 100 * report.drafts_busy,
      100.0 * static_cast<double>(report.draft_misses) /
          std::max<double>(1, static_cast<double>(report.draft_hits + report.draft_misses)),
      1e3 * report.exposed_draft,
      1e-6 * static_cast<double>(report.state_bytes) / std::max(1e-9, report.duration));
}

}  // namespace

absl::Status RunSimulate() {
  if (absl::Status checked = CheckLimits(); !checked.ok()) return checked;
  auto times = TimeFlags();
  if (!times.ok()) return times.status();
  if (absl::Status drafter = DrafterFlags(&*times); !drafter.ok()) return drafter;
  auto tree = speculation::GrowthPolicy::Parse(FLAGS_tree);
  if (!tree.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tree=", FLAGS_tree, ": ", tree.status().message()));
  }
  const auto policy = SpeculationFlag();
  if (!policy.ok()) return policy.status();
  const auto rates = Numbers("rate", FLAGS_rate, 1e-6, 1e9);
  if (!rates.ok()) return rates.status();
  const auto sizes = Sizes(times->place);
  if (!sizes.ok()) return sizes.status();
  const auto router = DraftRouterFlag();
  if (!router.ok()) return router.status();
  std::vector<scheduler::Arrival> trace;
  if (!FLAGS_workload_trace.empty()) {
    auto read = ReadTrace();
    if (!read.ok()) return read.status();
    trace = *std::move(read);
  }
  if (!FLAGS_json) PrintHeader();
  for (double rate : *rates) {
    if (FLAGS_workload_trace.empty()) {
      trace = scheduler::PoissonArrivals(FLAGS_requests, rate, FLAGS_prompt_tokens,
                                         FLAGS_output_tokens, FLAGS_seed);
    }
    for (const auto& [targets, drafts] : *sizes) {
      scheduler::SimulationOptions options = Options(trace, *tree, *policy, *times);
      options.router.policy = *router;
      options.draft.ahead = Ahead();
      options.targets = targets;
      options.drafts = drafts;
      Print(FLAGS_workload_trace.empty() ? rate : 0, targets, drafts,
            scheduler::Simulate(options, trace));
      std::fflush(stdout);
    }
    if (!FLAGS_workload_trace.empty()) break;
  }
  return absl::OkStatus();
}

}  // namespace specfabric::app
