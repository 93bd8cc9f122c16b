#include "gateway/conversation.h"

#include <algorithm>
#include <utility>

namespace specfabric::gateway {

void Conversation::Say(const std::string& role, std::string text) {
  messages_.push_back({{"role", role}, {"content", std::move(text)}});
  if (role == "assistant" && !reasoning_.empty()) {
    messages_.back()["reasoning_content"] = std::exchange(reasoning_, {});
  }
}

void Conversation::Reason(const std::string& text) { reasoning_ += text; }

bool Conversation::EndsWithAssistant() const {
  return !messages_.empty() && messages_.back()["role"] == "assistant";
}

// The assistant's message that a call belongs to.
Json& Conversation::Assistant() {
  if (!EndsWithAssistant() || !reasoning_.empty()) Say("assistant", "");
  return messages_.back();
}

void Conversation::Call(std::string id, std::string name, std::string arguments) {
  Assistant()["tool_calls"].push_back(
      {{"id", std::move(id)},
       {"type", "function"},
       {"function", {{"name", std::move(name)}, {"arguments", std::move(arguments)}}}});
}

void Conversation::Result(std::string id, std::string text) {
  messages_.push_back(
      {{"role", "tool"}, {"tool_call_id", std::move(id)}, {"content", std::move(text)}});
}

std::optional<std::string> TextOf(const Json& content, std::initializer_list<const char*> types) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return std::nullopt;
  std::string text;
  for (const Json& part : content) {
    const std::string* const type = StringIn(part, "type");
    if (type == nullptr || std::find(types.begin(), types.end(), *type) == types.end()) {
      return std::nullopt;
    }
    const std::string* const own = StringIn(part, *type == "refusal" ? "refusal" : "text");
    if (own == nullptr) return std::nullopt;
    text += *own;
  }
  return text;
}

void RefuseChoices(Fields& fields) {
  if (fields.Integer("n", 1, 1, Fields::kAny) != 1) fields.Fail("n", "may only be 1");
  if (fields.Find("prompt_logprobs") != nullptr) {
    fields.Fail("prompt_logprobs", "is a field of chats and completions");
  }
}

}  // namespace specfabric::gateway
