#ifndef SPECFABRIC_GATEWAY_PARSE_SPECULATION_H_
#define SPECFABRIC_GATEWAY_PARSE_SPECULATION_H_

// What a request says about speculation: `speculation`, and `verification`, which is the same as
// `speculation.method`.

#include "gateway/json_fields.h"
#include "gateway/openai_parse.h"

namespace specfabric::gateway {

void ReadSpeculation(Fields& fields, GenerationRequest& request);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_PARSE_SPECULATION_H_
