#include "gateway/anthropic_parse.h"

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gateway/conversation.h"
#include "gateway/json_fields.h"
#include "gateway/parse_messages.h"

namespace specfabric::gateway {
namespace {

// Replaces the API's own fields in `body` by a chat's.
class AnthropicReader {
 public:
  AnthropicReader(Json& body, Fields& fields) : body_(body), fields_(fields) {}

  void Read() {
    ReadConversation();
    if (fields_.Find("max_tokens") == nullptr) {
      fields_.Fail("max_tokens", "must be a whole number, at least 1");
    }
    const int64_t most = fields_.Integer("max_tokens", 1, 1, Fields::kAny);
    ReadOutput();
    ReadThinking();
    if (fields_.Find("mcp_servers") != nullptr && !fields_.Find("mcp_servers")->empty()) {
      fields_.Fail("mcp_servers", "is not supported");
    }
    RefuseChoices(fields_);
    if (fields_.Find("stop") != nullptr) fields_.Fail("stop", "is 'stop_sequences' here");
    if (!fields_.ok()) return;
    if (const auto stops = body_.find("stop_sequences"); stops != body_.end()) {
      Json list = std::move(*stops);
      body_["stop"] = std::move(list);
    }
    body_["max_tokens"] = most;
    // Anthropic's cache is asked for by marks; this server's needs none.
    for (const char* name : {"stop_sequences", "thinking", "output_config", "output_format",
                             "mcp_servers", "container", "context_management", "cache_control",
                             "inference_geo", "anthropic_version"}) {
      body_.erase(name);
    }
  }

  // System, messages and tools: all that counts as input.
  void ReadConversation() {
    ReadSystem();
    ReadMessages();
    ReadTools();
    ReadToolChoice();
    if (!fields_.ok()) return;
    body_.erase("system");
    // An answer goes on with what the assistant has said last.
    if (conversation_.EndsWithAssistant()) body_["continue_final_message"] = true;
    body_["messages"] = conversation_.TakeMessages();
  }

 private:
  void ReadSystem() {
    const Json* system = fields_.Find("system");
    if (system == nullptr) return;
    auto text = TextOf(*system, {"text"});
    if (!text) return fields_.Fail("system", "must be a string or a list of text parts");
    conversation_.Say("system", *std::move(text));
  }

  void ReadMessages() {
    const Json* messages = fields_.Find("messages");
    if (messages == nullptr || !messages->is_array() || messages->empty()) {
      return fields_.Fail("messages", "must be a list of at least one message");
    }
    if (!CountIsAllowed(fields_, "messages", kMaxMessages)) return;
    for (size_t i = 0; i < messages->size() && fields_.ok(); ++i) {
      const Json& message = (*messages)[i];
      const std::string* const role = StringIn(message, "role");
      const bool known =
          role != nullptr && (*role == "user" || *role == "assistant" || *role == "system");
      const char* rule = known ? nullptr : "have 'user', 'assistant' or 'system' as 'role'";
      if (known) rule = AddMessage(*role, MemberOf(message, "content"));
      if (rule == nullptr) continue;
      fields_.Fail(BadRequest(
          "messages", absl::StrCat("'messages[", i, "]' must ", rule, ", got ", Shown(message))));
    }
  }

  // Null, or what the message must have.
  const char* AddMessage(const std::string& role, const Json& content) {
    if (content.is_string()) {
      conversation_.Say(role, content.get<std::string>());
      return nullptr;
    }
    if (!content.is_array()) return "have a string or a list of blocks as 'content'";
    Said said{conversation_, role};
    for (const Json& block : content) {
      if (const char* rule = AddBlock(role, block, said)) return rule;
    }
    said.Tell();
    if (!said.any) conversation_.Say(role, "");
    return nullptr;
  }

  // The text blocks of a message, until something else follows.
  struct Said {
    Conversation& conversation;
    const std::string& role;
    std::string text = {};
    bool any = false;

    void Tell() {
      if (text.empty()) return;
      conversation.Say(role, std::exchange(text, {}));
      any = true;
    }
  };

  const char* AddBlock(const std::string& role, const Json& block, Said& said) {
    const std::string* const type = StringIn(block, "type");
    if (type == nullptr) return "have blocks with a 'type'";
    if (*type == "text") {
      const std::string* const own = StringIn(block, "text");
      if (own == nullptr) return "have text blocks with a string as 'text'";
      said.text += *own;
      return nullptr;
    }
    if (*type == "thinking" && role == "assistant") {
      if (const std::string* own = StringIn(block, "thinking")) conversation_.Reason(*own);
      return nullptr;
    }
    if (*type == "redacted_thinking" && role == "assistant") return nullptr;
    said.Tell();
    said.any = true;
    if (*type == "tool_result" && role == "user") {
      return AddResult(block) ? nullptr
                              : "have results with a string as 'tool_use_id', and a string or text "
                                "blocks as 'content'";
    }
    if (*type == "tool_use" && role == "assistant") {
      return AddCall(block)
                 ? nullptr
                 : "have calls with strings as 'id' and 'name', and an object as 'input'";
    }
    return role == "user" ? "have blocks of type 'text' or 'tool_result'"
                          : "have blocks of type 'text', 'thinking' or 'tool_use'";
  }

  bool AddCall(const Json& block) {
    const std::string *id = StringIn(block, "id"), *name = StringIn(block, "name");
    const Json& input = MemberOf(block, "input");
    if (id == nullptr || name == nullptr || !input.is_object()) return false;
    conversation_.Call(*id, *name, input.dump());
    return true;
  }

  bool AddResult(const Json& block) {
    const std::string* const id = StringIn(block, "tool_use_id");
    const Json& content = MemberOf(block, "content");
    auto text = content.is_null() ? std::string() : TextOf(content, {"text"});
    if (id == nullptr || !text) return false;
    conversation_.Result(*id, *std::move(text));
    return true;
  }

  void ReadTools() {
    CheckToolCount(fields_);
    const auto tools = body_.find("tools");
    if (tools == body_.end() || tools->is_null() || !fields_.ok()) return;
    if (!tools->is_array()) return fields_.Fail("tools", "must be a list of tools");
    for (size_t i = 0; i < tools->size(); ++i) {
      Json& tool = (*tools)[i];
      const std::string* const name = StringIn(tool, "name");
      const Json& type = MemberOf(tool, "type");
      if (name == nullptr || !(type.is_null() || type == "custom") ||
          !MemberOf(tool, "input_schema").is_object()) {
        return fields_.Fail(
            BadRequest("tools", absl::StrCat("'tools[", i,
                                             "]' must have a 'name' and an 'input_schema', and "
                                             "be of type 'custom' if of any, got ",
                                             Shown(tool))));
      }
      Json function = {{"name", *name}};
      if (const auto* text = StringIn(tool, "description")) function["description"] = *text;
      function["parameters"] = std::move(tool["input_schema"]);
      tool = {{"type", "function"}, {"function", std::move(function)}};
    }
  }

  void ReadToolChoice() {
    const auto choice = body_.find("tool_choice");
    if (choice == body_.end() || choice->is_null()) return;
    const std::string* const type = StringIn(*choice, "type");
    const std::string* const name = StringIn(*choice, "name");
    Json chosen;
    if (type != nullptr && (*type == "auto" || *type == "none")) chosen = *type;
    if (type != nullptr && *type == "any") chosen = "required";
    if (type != nullptr && *type == "tool" && name != nullptr) {
      chosen = {{"type", "function"}, {"function", {{"name", *name}}}};
    }
    if (chosen.is_null()) {
      return fields_.Fail("tool_choice",
                          "must be of type 'auto', 'any' or 'none', or 'tool' with a 'name'");
    }
    const bool one = MemberOf(*choice, "disable_parallel_tool_use") == true;
    *choice = std::move(chosen);
    if (one) body_["parallel_tool_calls"] = false;
  }

  // The form of the answer, and how much the model should think.
  void ReadOutput() {
    const Json* config = fields_.Find("output_config");
    Json format = config == nullptr ? Json() : MemberOf(*config, "format");
    Json effort = config == nullptr ? Json() : MemberOf(*config, "effort");
    if (const Json* earlier = fields_.Find("output_format")) format = *earlier;
    if (!format.is_null()) {
      if (MemberOf(format, "type") != "json_schema" || !format.contains("schema")) {
        return fields_.Fail("output_config",
                            "must have a 'format' of type 'json_schema' with a 'schema'");
      }
      body_["response_format"] = {{"type", "json_schema"},
                                  {"json_schema", {{"schema", std::move(format["schema"])}}}};
    }
    if (!effort.is_null()) body_["reasoning_effort"] = std::move(effort);
  }

  void ReadThinking() {
    const Json* thinking = fields_.Find("thinking");
    if (thinking == nullptr) return;
    const std::string* const type = StringIn(*thinking, "type");
    if (type == nullptr || (*type != "enabled" && *type != "disabled" && *type != "adaptive")) {
      return fields_.Fail("thinking", "must be of type 'enabled', 'disabled' or 'adaptive'");
    }
    if (*type == "adaptive") return;
    const bool enabled = *type == "enabled";
    Json& variables = body_["chat_template_kwargs"];
    if (variables.is_null()) variables = Json::object();
    if (variables.is_object() && !variables.contains("enable_thinking")) {
      variables["enable_thinking"] = enabled;
    }
  }

  Json& body_;
  Fields& fields_;
  Conversation conversation_;
};

}  // namespace

Parsed<GenerationRequest> ParseAnthropic(std::string_view body, const SamplingDefaults& defaults) {
  Parsed<Json> json = ParseBody(body);
  if (auto* error = std::get_if<ApiError>(&json)) return std::move(*error);
  auto& chat = std::get<Json>(json);
  Fields fields(chat);
  AnthropicReader(chat, fields).Read();
  if (!fields.ok()) return *fields.error();
  Parsed<GenerationRequest> parsed = ParseChatFields(std::move(chat), defaults);
  if (auto* request = std::get_if<GenerationRequest>(&parsed)) request->api = Api::kAnthropic;
  return parsed;
}

Parsed<TokenizeRequest> ParseCountTokens(std::string_view body) {
  Parsed<Json> json = ParseBody(body);
  if (auto* error = std::get_if<ApiError>(&json)) return std::move(*error);
  auto& chat = std::get<Json>(json);
  Fields fields(chat);
  AnthropicReader(chat, fields).ReadConversation();
  if (!fields.ok()) return *fields.error();
  TokenizeRequest request;
  request.model = fields.String("model", "");
  const Json& tools = MemberOf(chat, "tools");
  if (tools.is_array() && !tools.empty()) request.tools_json = tools.dump();
  request.continue_final_message = MemberOf(chat, "continue_final_message") == true;
  request.add_generation_prompt = !request.continue_final_message;
  request.add_special_tokens = false;
  request.messages = gateway::ReadMessages(chat, fields);
  if (!fields.ok()) return *fields.error();
  return request;
}

}  // namespace specfabric::gateway
