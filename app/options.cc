#include "app/options.h"

#include <algorithm>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "app/flag_checks.h"
#include "app/flags.h"
#include "app/join_secret.h"
#include "app/model_options.h"
#include "app/test_hooks.h"
#include "base/status.h"
#include "speculation/growth.h"
#include "speculation/verification_method.h"
#include "tokenizer/fingerprint.h"
#include "transport/address.h"

namespace specfabric::app {

namespace {

constexpr DurationRange kSessionRange = {.least = absl::Milliseconds(100),
                                         .most = absl::Hours(2400)};
constexpr DurationRange kSpinRange = {.most = absl::Seconds(1)};
// A longer round trip would outlast the handshake's timeout.
constexpr DurationRange kRoundTripRange = {.most = absl::Seconds(1)};

// Polling needs a core of its own: on a small machine it takes the core from the thread whose
// message it waits for.
absl::StatusOr<base::Nanos> SpinFlag() {
  if (FLAGS_spin == "auto") {
    return std::thread::hardware_concurrency() < 8 ? 0 : 20 * base::kMicrosecond;
  }
  base::Nanos spin = 0;
  const absl::Status parsed = ParseDurationFlags({{"spin", FLAGS_spin, &spin, kSpinRange}});
  if (parsed.ok()) return spin;
  return absl::InvalidArgumentError(absl::StrCat(parsed.message(), ", or auto"));
}

}  // namespace

absl::StatusOr<transport::FabricOptions> FabricFlags() {
  transport::FabricOptions options;
  const absl::Status durations = ParseDurationFlags(
      {{"simulated_rtt", FLAGS_simulated_rtt, &options.faults.simulated_rtt, kRoundTripRange},
       {"silence_timeout", FLAGS_silence_timeout, &options.silence_timeout}});
  if (!durations.ok()) return durations;
  const auto spin = SpinFlag();
  if (!spin.ok()) return spin.status();
  options.spin = *spin;
  auto secret = JoinSecret();
  if (!secret.ok()) return secret.status();
  options.join_secret = *std::move(secret);
  options.require_rdma = FLAGS_require_rdma;
  options.require_gpudirect = FLAGS_require_gpudirect;
  return options;
}

std::vector<std::string> ServedModelNames() {
  std::vector<std::string> names;
  for (absl::string_view name :
       absl::StrSplit(FLAGS_served_model_name, ',', absl::SkipWhitespace())) {
    names.emplace_back(absl::StripAsciiWhitespace(name));
  }
  if (!names.empty()) return names;
  std::filesystem::path path = std::filesystem::path(FLAGS_model).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  return {path.filename().string()};
}

std::string ServedModelName() { return ServedModelNames().front(); }

absl::StatusOr<std::vector<std::string>> Addresses(
    const std::string& flag, const std::string& value,
    absl::FunctionRef<absl::Status(const std::string&)> check) {
  std::vector<std::string> list = absl::StrSplit(value, ',', absl::SkipWhitespace());
  for (const std::string& address : list) {
    if (absl::Status valid = check(address); !valid.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", valid.message()));
    }
  }
  return list;
}

absl::StatusOr<int> Count(const std::string& flag, const std::string& value, int fallback,
                          int least, int most) {
  int count = fallback;
  if ((!value.empty() && !absl::SimpleAtoi(value, &count)) || count < least || count > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--", flag, "=", value, ": allowed are whole numbers from ", least, " to ", most));
  }
  return count;
}

uint64_t TokenizerFingerprint(const std::string& model_dir) {
  return tokenizer::FingerprintOf(model_dir).value_or(0);
}

absl::Status CheckPair(const std::string& model_dir, const std::string& draft_dir) {
  auto target = model::LoadModelConfig(model_dir);
  if (!target.ok()) return target.status();
  auto draft = model::LoadDraftConfig(draft_dir, model_dir);
  if (!draft.ok()) return draft.status();
  if (draft->states && FLAGS_pipeline_stages > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(draft_dir, " reads its target's hidden states, with --pipeline_stages=",
                     FLAGS_pipeline_stages, ": allowed is 1"));
  }
  schemas::Hello of_target, of_draft;
  of_target.tokenizer_fingerprint = TokenizerFingerprint(model_dir);
  of_target.vocabulary = target->vocabulary;
  of_draft.tokenizer_fingerprint = TokenizerFingerprint(draft_dir);
  of_draft.vocabulary = draft->vocabulary;
  const absl::Status pair = schemas::CheckPair(of_target, of_draft);
  if (pair.ok()) return pair;
  return absl::InvalidArgumentError(
      absl::StrCat(draft_dir, " cannot draft for ", model_dir, ": ", pair.message()));
}

absl::StatusOr<GatewayTimes> GatewayTimeFlags() {
  GatewayTimes times;
  const absl::Status parsed =
      ParseDurationFlags({{"request_timeout", FLAGS_request_timeout, &times.request_timeout},
                          {"target_wait", FLAGS_target_wait, &times.target_wait},
                          {"stall_timeout", FLAGS_stall_timeout, &times.stall_timeout},
                          {"slow_request", FLAGS_slow_request, &times.slow_request}});
  if (!parsed.ok()) return parsed;
  return times;
}

absl::StatusOr<std::optional<gateway::ToolFormat>> ToolParserFlag() {
  if (FLAGS_tool_parser == "auto") return std::nullopt;
  const auto format = gateway::ParseToolFormat(FLAGS_tool_parser);
  if (format) return format;
  return absl::InvalidArgumentError(
      absl::StrCat("--tool_parser=", FLAGS_tool_parser,
                   ": allowed are auto, hermes, llama3_json, mistral and json"));
}

absl::StatusOr<gateway::SamplingDefaults> SamplingDefaultsOf(const std::string& model_dir) {
  if (!FLAGS_use_generation_config) return gateway::SamplingDefaults{};
  return gateway::ReadSamplingDefaults(model_dir);
}

absl::StatusOr<trace::RecorderOptions> TraceFlags() {
  const absl::Status sample = InRange("trace_sample", FLAGS_trace_sample, 0.0, 1.0);
  if (!sample.ok()) return sample;
  if (!FLAGS_otlp_endpoint.empty()) {
    auto endpoint = trace::ParseOtlpEndpoint(FLAGS_otlp_endpoint);
    if (!endpoint.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--otlp_endpoint: ", base::Message(endpoint.status())));
    }
  }
  return trace::RecorderOptions{
      .file = FLAGS_span_file, .endpoint = FLAGS_otlp_endpoint, .sample = FLAGS_trace_sample};
}

absl::StatusOr<base::Nanos> LookupInterval() {
  base::Nanos interval = 0;
  const absl::Status parsed = ParseDurationFlags(
      {{"dns_refresh", FLAGS_dns_refresh, &interval, {.least = absl::Milliseconds(100)}}});
  if (!parsed.ok()) return parsed;
  return interval;
}

absl::StatusOr<base::Nanos> DrainTimeoutFlag() {
  base::Nanos timeout = 0;
  const absl::Status parsed =
      ParseDurationFlags({{"drain_timeout", FLAGS_drain_timeout, &timeout}});
  if (!parsed.ok()) return parsed;
  return timeout;
}

absl::StatusOr<scheduler::SpeculationPolicy> SpeculationFlag() {
  if (FLAGS_speculation == "goodput") return scheduler::SpeculationPolicy::kGoodput;
  if (FLAGS_speculation == "always") return scheduler::SpeculationPolicy::kAlways;
  return absl::InvalidArgumentError(
      absl::StrCat("--speculation=", FLAGS_speculation, ": allowed are goodput and always"));
}

absl::StatusOr<scheduler::RoutePolicy> DraftRouterFlag() {
  auto policy = scheduler::ParseRoutePolicy(FLAGS_draft_router);
  if (!policy.ok()) return Flag("draft_router", FLAGS_draft_router, policy.status());
  return policy;
}

namespace {

absl::Status CheckTargetRanges() {
  for (absl::Status status :
       {InRange("tensor_parallel", FLAGS_tensor_parallel, 1, 64),
        InRange("pipeline_stages", FLAGS_pipeline_stages, 1,
                64 / std::max(1, FLAGS_tensor_parallel)),
        InRange("max_sequences", FLAGS_max_sequences, 1, 4096),
        InRange("max_queue", FLAGS_max_queue, 1, 1 << 20),
        InRange("draft_rows", FLAGS_draft_rows, 1, speculation::kMaxVerifyNodes),
        InRange("typical_epsilon", FLAGS_typical_epsilon, 0.0, 1.0),
        InRange("typical_delta", FLAGS_typical_delta, 0.0, 1.0)}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// --verification, --request_verification and what the methods that use draft probabilities need.
absl::Status SetVerification(target::TargetServiceOptions* options) {
  const bool chooses = FLAGS_verification == "auto";
  auto verification = chooses ? speculation::VerificationMethod::kCoupled
                              : speculation::ParseVerificationMethod(FLAGS_verification);
  if (!verification.ok()) {
    return Flag(
        "verification", FLAGS_verification,
        absl::InvalidArgumentError(absl::StrCat(verification.status().message(), "; or auto")));
  }
  uint32_t methods = 1u << static_cast<int>(*verification);
  if (chooses) methods |= speculation::kMethodsUsingDraftProbs;
  for (absl::string_view name :
       absl::StrSplit(FLAGS_request_verification, ',', absl::SkipWhitespace())) {
    auto other = speculation::ParseVerificationMethod({name.data(), name.size()});
    if (!other.ok()) {
      return Flag("request_verification", FLAGS_request_verification, other.status());
    }
    methods |= 1u << static_cast<int>(*other);
  }
  options->verification = *verification;
  options->chooses_verification = chooses;
  options->verification_methods = methods;
  const bool uses_draft_probs = (methods & speculation::kMethodsUsingDraftProbs) != 0;
  options->draft_probs_rows = uses_draft_probs ? FLAGS_draft_rows : 0;
  const auto features = FeatureFlags();
  if (!features.ok()) return features.status();
  options->gpu_draft_probs = features->gpu_draft_probs;
  options->gpu_states = features->gpu_states;
  return absl::OkStatus();
}

absl::Status SetScheduler(target::TargetServiceOptions* options) {
  scheduler::SchedulerOptions& scheduler = options->scheduler;
  scheduler.max_context = FLAGS_max_context;
  scheduler.max_sequences = FLAGS_max_sequences;
  scheduler.max_step_tokens = FLAGS_max_step_tokens;
  scheduler.max_waiting = FLAGS_max_queue;
  scheduler.ngram_lookup = FLAGS_ngram_lookup;
  auto policy = SpeculationFlag();
  if (!policy.ok()) return policy.status();
  scheduler.speculation = *policy;
  const absl::Status durations = ParseDurationFlags(
      {{"max_draft_wait", FLAGS_max_draft_wait, &scheduler.max_draft_wait, kDraftWaitRange}});
  if (!durations.ok()) return durations;
  scheduler.min_draft_wait = std::min(scheduler.min_draft_wait, scheduler.max_draft_wait);
  return absl::OkStatus();
}

// Which draft worker, and which draft model, a sequence uses.
absl::Status SetDraftPool(target::TargetServiceOptions* options) {
  const auto router = DraftRouterFlag();
  if (!router.ok()) return router.status();
  options->router.policy = *router;
  const auto hooks = ReadTestHooks();
  if (!hooks.ok()) return hooks.status();
  options->drafter_choice.policy = hooks->drafter_choice;
  return ParseDurationFlags(
      {{"draft_latency_warn", FLAGS_draft_latency_warn, &options->draft_latency_warn}});
}

absl::Status SetRanks(target::TargetServiceOptions* options) {
  auto rank = RankOptionsFor("model", FLAGS_model, FLAGS_max_sequences);
  if (!rank.ok()) return rank.status();
  if (absl::Status split = CheckRanks(); !split.ok()) return split;
  options->ranks.model_dir = FLAGS_model;
  options->ranks.tensor_parallel = FLAGS_tensor_parallel;
  options->ranks.rank = *rank;
  options->ranks.rank.pipeline_stages = FLAGS_pipeline_stages;
  options->ranks.typical = {.epsilon = FLAGS_typical_epsilon, .delta = FLAGS_typical_delta};
  auto group = GroupFlags();
  if (!group.ok()) return group.status();
  options->group = *std::move(group);
  return ParseDurationFlags(
      {{"step_timeout", FLAGS_step_timeout, &options->step_timeout, {.least = absl::Seconds(1)}}});
}

}  // namespace

absl::StatusOr<target::TargetServiceOptions> TargetOptions() {
  if (absl::Status ranges = CheckTargetRanges(); !ranges.ok()) return ranges;
  auto fabric = FabricFlags();
  if (!fabric.ok()) return fabric.status();
  target::TargetServiceOptions options;
  options.fabric = *std::move(fabric);
  for (const auto& set : {SetRanks, SetVerification, SetScheduler, SetDraftPool}) {
    if (absl::Status status = set(&options); !status.ok()) return status;
  }
  options.model_name = ServedModelName();
  options.tokenizer_fingerprint = TokenizerFingerprint(FLAGS_model);
  return options;
}

absl::StatusOr<target::RankServiceOptions> RankServiceFlags() {
  if (absl::Status checked = CheckModelFlags("model", FLAGS_model); !checked.ok()) return checked;
  if (absl::Status address = transport::CheckAddress(FLAGS_join); !address.ok()) {
    return Flag("join", FLAGS_join, address);
  }
  auto fabric = FabricFlags();
  if (!fabric.ok()) return fabric.status();
  target::RankServiceOptions options;
  options.model_dir = FLAGS_model;
  options.model_name = ServedModelName();
  options.tokenizer_fingerprint = TokenizerFingerprint(FLAGS_model);
  options.threads = FLAGS_threads;
  options.join = FLAGS_join;
  options.fabric = *std::move(fabric);
  return options;
}

namespace {

absl::StatusOr<std::vector<int32_t>> StateLayersFlag() {
  std::vector<int32_t> layers;
  for (const absl::string_view part : absl::StrSplit(FLAGS_state_layers, ',', absl::SkipEmpty())) {
    int32_t layer = 0;
    if (!absl::SimpleAtoi(part, &layer) || layer < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--state_layers=", FLAGS_state_layers,
                       ": allowed are whole numbers from 0 on, separated by commas"));
    }
    layers.push_back(layer);
  }
  return layers;
}

}  // namespace

absl::StatusOr<draft::DraftServiceOptions> DraftOptions(const std::string& model_dir,
                                                        const std::string& target_dir) {
  for (absl::Status status :
       {InRange("max_sessions", FLAGS_max_sessions, 1, 1 << 16),
        InRange("ahead_nodes", FLAGS_ahead_nodes, 1, draft::SpeculationCache::kSlots - 1),
        InRange("ahead_rows", FLAGS_ahead_rows, 1, 4096),
        InRange("draft_top_n", FLAGS_draft_top_n, 0, 1 << 24)}) {
    if (!status.ok()) return status;
  }
  auto growth = speculation::GrowthPolicy::Parse(FLAGS_tree);
  if (!growth.ok()) return Flag("tree", FLAGS_tree, growth.status());
  auto sampled = speculation::GrowthPolicy::Parse(FLAGS_sampled_tree);
  if (!sampled.ok()) return Flag("sampled_tree", FLAGS_sampled_tree, sampled.status());
  if (sampled->widths.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--sampled_tree=", FLAGS_sampled_tree,
        ": a tree whose draft tokens are drawn by chance has a shape that chance does not change; "
        "allowed are children for each depth, as in \"2,2,1\""));
  }
  auto draw = speculation::ParseSiblingDraw(FLAGS_sampled_draw);
  if (!draw.ok() || *draw == speculation::SiblingDraw::kCoupledTopK) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sampled_draw=", FLAGS_sampled_draw,
                     ": allowed are without_replacement, with_replacement and deterministic"));
  }
  auto fabric = FabricFlags();
  if (!fabric.ok()) return fabric.status();
  auto rank = RankOptionsFor("model", model_dir, FLAGS_max_sessions, target_dir);
  if (!rank.ok()) return rank.status();
  draft::DraftServiceOptions options;
  options.model_dir = model_dir;
  options.rank = *rank;
  auto state_layers = StateLayersFlag();
  if (!state_layers.ok()) return state_layers.status();
  options.rank.state_layers = *std::move(state_layers);
  LimitDraftCache(FLAGS_max_sessions, &options.rank.kv_sizing);
  options.engine.growth = *growth;
  const auto hooks = ReadTestHooks();
  if (!hooks.ok()) return hooks.status();
  options.engine.ahead.policy = FLAGS_ahead ? hooks->ahead : draft::AheadPolicy::kOff;
  options.engine.ahead.nodes = FLAGS_ahead_nodes;
  options.engine.ahead.rows = FLAGS_ahead_rows;
  options.engine.sampled_growth = *std::move(sampled);
  options.engine.sampled_draw = *draw;
  options.engine.top_n = FLAGS_draft_top_n;
  const auto features = FeatureFlags();
  if (!features.ok()) return features.status();
  options.gpu_draft_probs = features->gpu_draft_probs;
  options.gpu_states = features->gpu_states;
  options.engine.max_step_tokens = FLAGS_max_step_tokens;
  options.engine.sessions.max_sessions = FLAGS_max_sessions;
  options.engine.sessions.context = FLAGS_max_context;
  const absl::Status durations = ParseDurationFlags(
      {{"session_ttl", FLAGS_session_ttl, &options.engine.sessions.time_to_live, kSessionRange}});
  if (!durations.ok()) return durations;
  options.model_name = std::filesystem::path(model_dir).filename().string();
  options.tokenizer_fingerprint = TokenizerFingerprint(model_dir);
  options.fabric = *std::move(fabric);
  const base::Nanos simulated_rtt = options.fabric.faults.simulated_rtt;
  options.fabric.faults = hooks->faults;
  options.fabric.faults.simulated_rtt = simulated_rtt;
  return options;
}

absl::StatusOr<base::SamplingParams> SamplingOptions() {
  for (absl::Status status :
       {InRange("temperature", FLAGS_temperature, 0.0, 100.0),
        InRange("top_p", FLAGS_top_p, 1e-6, 1.0), InRange("min_p", FLAGS_min_p, 0.0, 1.0),
        InRange("top_k", FLAGS_top_k, 0, 1 << 24),
        InRange("max_tokens", FLAGS_max_tokens, 1, 1 << 24),
        InRange("repeat", FLAGS_repeat, 1, 1 << 20)}) {
    if (!status.ok()) return status;
  }
  base::SamplingParams sampling;
  sampling.temperature = static_cast<float>(FLAGS_temperature);
  sampling.top_k = FLAGS_top_k;
  sampling.top_p = static_cast<float>(FLAGS_top_p);
  sampling.min_p = static_cast<float>(FLAGS_min_p);
  sampling.seed = FLAGS_seed;
  return sampling;
}

}  // namespace specfabric::app
