#include "gateway/parse_messages.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "gateway/conversation.h"

namespace specfabric::gateway {
namespace {

// Makes a message's content one string, as chat templates expect. False if it cannot be one. A
// message with tool calls needs no content, a user's message does; in all others a missing content
// becomes an empty string.
bool FlattenContent(Json& message) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    const auto calls = message.find("tool_calls");
    if (calls != message.end() && !calls->is_null() && !calls->empty()) return true;
    if (message["role"] == "user") return false;
    message["content"] = "";
    return true;
  }
  if (content->is_string()) return true;
  auto text = TextOf(*content, {"text"});
  if (!text) return false;
  *content = *std::move(text);
  return true;
}

// Arguments that the server passes to the template; clients cannot set variables of these names.
constexpr std::array<std::string_view, 6> kReserved = {
    "messages", "tools",        "add_generation_prompt", "continue_final_message",
    "tokenize", "chat_template"};

void AddKwargs(Fields& fields, Json& variables) {
  const Json* kwargs = fields.Find("chat_template_kwargs");
  if (kwargs == nullptr) return;
  if (!kwargs->is_object()) return fields.Fail("chat_template_kwargs", "must be an object");
  for (const auto& [name, value] : kwargs->items()) {
    if (std::find(kReserved.begin(), kReserved.end(), name) == kReserved.end()) continue;
    return fields.Fail(BadRequest(
        "chat_template_kwargs",
        "'chat_template_kwargs' must not have '" + name + "', which is the request's own to say"));
  }
  variables = *kwargs;
}

void AddDocuments(Fields& fields, Json& variables) {
  constexpr const char* kName = "documents";
  const Json* documents = fields.Find(kName);
  if (documents == nullptr || !CountIsAllowed(fields, kName, kMaxDocuments)) return;
  const bool good = documents->is_array() &&
                    std::all_of(documents->begin(), documents->end(),
                                [](const Json& document) { return document.is_object(); });
  if (!good) return fields.Fail(kName, "must be a list of objects");
  if (variables.contains(kName)) {
    return fields.Fail(kName, "must not be in 'chat_template_kwargs' as well");
  }
  variables[kName] = *documents;
}

// As in vLLM and SGLang: sets the variable reasoning_effort, and, unless the client sets it,
// enable_thinking for templates that have no levels.
void AddReasoningEffort(Fields& fields, Json& variables) {
  constexpr const char* kName = "reasoning_effort";
  constexpr std::array kLevels = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  const Json* effort = fields.Find(kName);
  if (effort == nullptr) return;
  const bool good = std::any_of(kLevels.begin(), kLevels.end(),
                                [&](const char* level) { return *effort == level; });
  if (!good) {
    return fields.Fail(kName, "must be none, minimal, low, medium, high, xhigh or max");
  }
  if (variables.contains(kName)) {
    return fields.Fail(kName, "must not be in 'chat_template_kwargs' as well");
  }
  variables[kName] = *effort;
  if (!variables.contains("enable_thinking")) variables["enable_thinking"] = *effort != "none";
}

}  // namespace

bool CountIsAllowed(Fields& fields, const char* name, size_t most) {
  const Json* list = fields.Find(name);
  if (list == nullptr || !list->is_array() || list->size() <= most) return true;
  fields.Fail(BadRequest(name, std::string("'") + name + "' has " + std::to_string(list->size()) +
                                   " entries; at most " + std::to_string(most) + " are allowed"));
  return false;
}

std::string ReadMessages(Json& request, Fields& fields) {
  const auto messages = request.find("messages");
  if (messages == request.end() || !messages->is_array() || messages->empty()) {
    fields.Fail("messages", "must be a list of at least one message");
    return "";
  }
  if (!CountIsAllowed(fields, "messages", kMaxMessages)) return "";
  for (size_t i = 0; i < messages->size(); ++i) {
    const auto refuse = [&](const char* rule) {
      fields.Fail(BadRequest("messages", "'messages[" + std::to_string(i) + "]' must " + rule +
                                             ", got " + Shown((*messages)[i])));
      return "";
    };
    Json& message = (*messages)[i];
    const bool has_role =
        message.is_object() && message.contains("role") && message["role"].is_string();
    if (!has_role) return refuse("be an object with a string as 'role'");
    if (!FlattenContent(message)) {
      return refuse("have a string or a list of text parts as 'content'");
    }
  }
  return messages->dump();
}

std::string ReadTemplateVariables(Fields& fields) {
  Json variables = Json::object();
  AddKwargs(fields, variables);
  AddDocuments(fields, variables);
  AddReasoningEffort(fields, variables);
  return variables.empty() ? "" : variables.dump();
}

void CheckToolCount(Fields& fields) {
  CountIsAllowed(fields, "tools", kMaxTools);
  CountIsAllowed(fields, "functions", kMaxTools);
}

}  // namespace specfabric::gateway
