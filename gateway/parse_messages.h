#ifndef SPECFABRIC_GATEWAY_PARSE_MESSAGES_H_
#define SPECFABRIC_GATEWAY_PARSE_MESSAGES_H_

// What a chat template is given: the conversation and further variables.

#include <string>

#include "gateway/json_fields.h"

namespace specfabric::gateway {

constexpr size_t kMaxMessages = 16384;
constexpr size_t kMaxTools = 1024;
constexpr size_t kMaxDocuments = 1024;

// The messages of `request` as JSON for the template, contents flattened to strings; `fields` reads
// the same object. Changes the messages in place.
std::string ReadMessages(Json& request, Fields& fields);

// `chat_template_kwargs`, and `documents` and `reasoning_effort` as variables of their names, as
// one JSON object; empty if there are none.
std::string ReadTemplateVariables(Fields& fields);

// Refuses more tools than any client has, before anything looks at them.
void CheckToolCount(Fields& fields);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_PARSE_MESSAGES_H_
