#ifndef SPECFABRIC_GATEWAY_RESPONSES_PARSE_H_
#define SPECFABRIC_GATEWAY_RESPONSES_PARSE_H_

// Requests of OpenAI's Responses API, turned into chats. Nothing is kept between requests: the
// whole conversation is in each. Fields that are not the API's own are read as a chat's. Pure.

#include <string_view>

#include "gateway/openai_parse.h"

namespace specfabric::gateway {

Parsed<GenerationRequest> ParseResponses(std::string_view body, const SamplingDefaults& defaults);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_RESPONSES_PARSE_H_
