#ifndef SPECFABRIC_APP_OPTIONS_H_
#define SPECFABRIC_APP_OPTIONS_H_

// Parses and checks flags into the options structs of the layers below. Every error is one line:
// what was given and what is allowed.

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/types.h"
#include "draft/draft_service.h"
#include "gateway/sampling_defaults.h"
#include "gateway/tool_format.h"
#include "target/rank_service.h"
#include "target/target_service.h"
#include "trace/recorder.h"
#include "transport/fabric.h"

namespace specfabric::app {

// Timeouts of a gateway; 0: none.
struct GatewayTimes {
  base::Nanos request_timeout = 0;
  base::Nanos target_wait = 0;  // 0: does not wait
  base::Nanos stall_timeout = 0;
  base::Nanos slow_request = 0;
};
absl::StatusOr<GatewayTimes> GatewayTimeFlags();

// Sampling defaults of the checkpoint in `model_dir`; none with --use_generation_config=false.
// Nothing: as the chat template says.
absl::StatusOr<std::optional<gateway::ToolFormat>> ToolParserFlag();
absl::StatusOr<gateway::SamplingDefaults> SamplingDefaultsOf(const std::string& model_dir);

// --span_file, --otlp_endpoint and --trace_sample.
absl::StatusOr<trace::RecorderOptions> TraceFlags();

// --dns_refresh.
absl::StatusOr<base::Nanos> LookupInterval();

// --drain_timeout.
absl::StatusOr<base::Nanos> DrainTimeoutFlag();

// --speculation.
absl::StatusOr<scheduler::SpeculationPolicy> SpeculationFlag();
// --draft_router.
absl::StatusOr<scheduler::RoutePolicy> DraftRouterFlag();
absl::StatusOr<target::TargetServiceOptions> TargetOptions();
absl::StatusOr<target::RankServiceOptions> RankServiceFlags();
// `model_dir`: --model in a draft process, --draft_model elsewhere; `target_dir`: --target_model in
// a draft process, --model elsewhere.
absl::StatusOr<draft::DraftServiceOptions> DraftOptions(const std::string& model_dir,
                                                        const std::string& target_dir);
absl::StatusOr<base::SamplingParams> SamplingOptions();

// The flags of the fabric, which all roles have.
absl::StatusOr<transport::FabricOptions> FabricFlags();

// The names of --served_model_name, or the last part of the checkpoint's path; at least one.
std::vector<std::string> ServedModelNames();
// The first of them, which answers, metrics and other processes have.
std::string ServedModelName();
// "a:1,b:2" as a list. Every entry must pass `check`: link::CheckPeerAddress where dns:/// names
// are allowed, transport::CheckAddress where they are not.
absl::StatusOr<std::vector<std::string>> Addresses(
    const std::string& flag, const std::string& value,
    absl::FunctionRef<absl::Status(const std::string&)> check);
// `fallback` where `value` is empty.
absl::StatusOr<int> Count(const std::string& flag, const std::string& value, int fallback,
                          int least, int most);
// Hash of tokenizer.json's bytes; 0 if there is none.
uint64_t TokenizerFingerprint(const std::string& model_dir);
// InvalidArgument if draft and target differ in vocabulary or tokenizer.
absl::Status CheckPair(const std::string& model_dir, const std::string& draft_dir);

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_OPTIONS_H_
