#ifndef SPECFABRIC_GATEWAY_PARSE_TOOLS_H_
#define SPECFABRIC_GATEWAY_PARSE_TOOLS_H_

// OpenAI's fields about tools: tools, tool_choice, parallel_tool_calls.

#include "gateway/json_fields.h"
#include "gateway/openai_parse.h"

namespace specfabric::gateway {

// Of a chat. After ReadGrammar: an answer that must call a tool has no other form.
void ReadTools(Fields& fields, GenerationRequest& request);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_PARSE_TOOLS_H_
