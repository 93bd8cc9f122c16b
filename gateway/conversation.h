#ifndef SPECFABRIC_GATEWAY_CONVERSATION_H_
#define SPECFABRIC_GATEWAY_CONVERSATION_H_

// The messages of a chat, made of the items of other APIs. Pure.

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "gateway/json_fields.h"

namespace specfabric::gateway {

class Conversation {
 public:
  void Say(const std::string& role, std::string text);
  // What the assistant thought before what it says or calls next.
  void Reason(const std::string& text);
  // Belongs to the assistant's message before it, if that is the last one. `arguments`: JSON text.
  void Call(std::string id, std::string name, std::string arguments);
  void Result(std::string id, std::string text);

  bool EndsWithAssistant() const;
  Json TakeMessages() { return std::move(messages_); }  // a list

 private:
  Json& Assistant();

  Json messages_ = Json::array();
  std::string reasoning_;  // of the next message
};

// The text of `content`: a string, or a list of parts of the given types, each with its text.
// Nothing if it is anything else.
std::optional<std::string> TextOf(const Json& content, std::initializer_list<const char*> types);

// Fields of a chat that answers in other forms have no place for: several choices, and scores of
// the prompt.
void RefuseChoices(Fields& fields);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_CONVERSATION_H_
