#ifndef SPECFABRIC_GATEWAY_PARSE_MESSAGES_H_
#define SPECFABRIC_GATEWAY_PARSE_MESSAGES_H_

// The input of a chat template: the conversation and further variables.

#include <string>

#include "gateway/json_fields.h"

namespace specfabric::gateway {

constexpr size_t kMaxMessages = 16384;
constexpr size_t kMaxTools = 1024;
constexpr size_t kMaxDocuments = 1024;

// The messages of `request` as JSON for the template, contents flattened to strings; `fields` reads
// the same object. Changes the messages in place.
std::string ReadMessages(Json& request, Fields& fields);

// One JSON object of the variables: those of `chat_template_kwargs`, `documents` and
// `reasoning_effort`. Empty if there are none.
std::string ReadTemplateVariables(Fields& fields);

// False, with an error, if `name` is a list of more than `most` entries.
bool CountIsAllowed(Fields& fields, const char* name, size_t most);

// Refuses a request with too many tools, before anything processes them.
void CheckToolCount(Fields& fields);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_PARSE_MESSAGES_H_
