#ifndef SPECFABRIC_GATEWAY_FORMAT_SPECULATION_H_
#define SPECFABRIC_GATEWAY_FORMAT_SPECULATION_H_

// An answer's `metrics`: what speculation did for it, under vLLM's names (docs/api.md), which tools
// such as AIPerf read. Pure.

#include "gateway/json_parse.h"
#include "gateway/openai_format.h"

namespace specfabric::gateway {

// {"speculative_decoding": {...}}; null there for an answer of several choices, as in vLLM: tools
// take it for one sequence's.
Json MetricsJson(const Usage& usage);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_FORMAT_SPECULATION_H_
