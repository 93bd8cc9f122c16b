#ifndef SPECFABRIC_GATEWAY_ANTHROPIC_PARSE_H_
#define SPECFABRIC_GATEWAY_ANTHROPIC_PARSE_H_

// Requests of Anthropic's Messages API, turned into chats. Fields that are not the API's own are
// read as a chat's. Pure.

#include <string_view>

#include "gateway/openai_parse.h"

namespace specfabric::gateway {

Parsed<GenerationRequest> ParseAnthropic(std::string_view body, const SamplingDefaults& defaults);

// Of /v1/messages/count_tokens: a conversation without the rest.
Parsed<TokenizeRequest> ParseCountTokens(std::string_view body);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_ANTHROPIC_PARSE_H_
