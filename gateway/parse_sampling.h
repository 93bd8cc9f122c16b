#ifndef SPECFABRIC_GATEWAY_PARSE_SAMPLING_H_
#define SPECFABRIC_GATEWAY_PARSE_SAMPLING_H_

// The fields for sampling and for the end of the output.

#include <cstdint>
#include <limits>

#include "gateway/json_fields.h"
#include "gateway/openai_parse.h"

namespace specfabric::gateway {

// Ranges of numbers, for requests and for generation_config.json.
struct NumberRange {
  const char* allowed;
  bool (*ok)(double);
};
constexpr NumberRange kTemperatures = {"from 0 to 2", [](double t) { return t >= 0 && t <= 2; }};
constexpr NumberRange kTopPs = {"from 0 to 1", [](double p) { return p >= 0 && p <= 1; }};
constexpr NumberRange kMinPs = {"from 0 to below 1", [](double p) { return p >= 0 && p < 1; }};
constexpr NumberRange kRepetitionPenalties = {"above 0", [](double p) { return p > 0; }};
constexpr int32_t kMaxTopK = std::numeric_limits<int32_t>::max();

void ReadSampling(Fields& fields, const SamplingDefaults& defaults, GenerationRequest& request);
// After max_tokens, which bounds min_tokens.
void ReadRules(Fields& fields, const SamplingDefaults& defaults, GenerationRequest& request);
void ReadStops(Fields& fields, GenerationRequest& request);

// A list of token ids; false if `value` is something else.
bool ReadTokenIds(const Json& value, std::vector<base::TokenId>* ids);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_PARSE_SAMPLING_H_
