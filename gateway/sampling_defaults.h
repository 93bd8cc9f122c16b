#ifndef SPECFABRIC_GATEWAY_SAMPLING_DEFAULTS_H_
#define SPECFABRIC_GATEWAY_SAMPLING_DEFAULTS_H_

// Defaults from a checkpoint's generation_config.json for fields that a request leaves out.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace specfabric::gateway {

// The fields that the file has; the others have OpenAI's default.
struct SamplingDefaults {
  std::optional<double> temperature = {};
  std::optional<double> top_p = {};
  std::optional<int32_t> top_k = {};
  std::optional<double> min_p = {};
  std::optional<double> repetition_penalty = {};
  std::optional<int64_t> max_tokens = {};  // max_new_tokens; for chats only, as in vLLM

  bool operator==(const SamplingDefaults&) const = default;
};

// Reads the file in `model_dir`; without the file all fields are empty. As in vLLM and SGLang
// `do_sample` is not read. InvalidArgument, in one line, if the file is not a JSON object or has a
// value that a request could not have.
absl::StatusOr<SamplingDefaults> ReadSamplingDefaults(const std::string& model_dir);

// The values that differ from OpenAI's defaults, as "temperature=0.6 top_k=20"; empty if none do.
std::string Describe(const SamplingDefaults& defaults);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_SAMPLING_DEFAULTS_H_
