#ifndef SPECFABRIC_GATEWAY_SAMPLING_DEFAULTS_H_
#define SPECFABRIC_GATEWAY_SAMPLING_DEFAULTS_H_

// What a checkpoint's generation_config.json recommends for requests that leave a field out.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace specfabric::gateway {

// Only what the file says; nothing means OpenAI's default.
struct SamplingDefaults {
  std::optional<double> temperature = {};
  std::optional<double> top_p = {};
  std::optional<int32_t> top_k = {};
  std::optional<double> min_p = {};
  std::optional<double> repetition_penalty = {};
  std::optional<int64_t> max_tokens = {};  // the file's max_new_tokens; chats, as in vLLM

  bool operator==(const SamplingDefaults&) const = default;
};

// Of the checkpoint in `model_dir`; all empty without the file. As in vLLM and SGLang the file's
// `do_sample` is not read. InvalidArgument, in one line, for a file that is not a JSON object and
// for a value that no request could ask for.
absl::StatusOr<SamplingDefaults> ReadSamplingDefaults(const std::string& model_dir);

// Those that differ from OpenAI's, as "temperature=0.6 top_k=20"; empty if none do.
std::string Describe(const SamplingDefaults& defaults);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_SAMPLING_DEFAULTS_H_
