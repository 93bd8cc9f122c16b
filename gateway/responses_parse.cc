#include "gateway/responses_parse.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "gateway/conversation.h"
#include "gateway/json_fields.h"
#include "gateway/parse_messages.h"

namespace specfabric::gateway {
namespace {

// Replaces the API's own fields in `body` by a chat's.
class ResponsesReader {
 public:
  ResponsesReader(Json& body, Fields& fields) : body_(body), fields_(fields) {}

  void Read() {
    ReadEcho();
    RefuseState();
    const Json* instructions = fields_.Find("instructions");
    if (instructions != nullptr && !instructions->is_string()) {
      return fields_.Fail("instructions", "must be a string");
    }
    if (instructions != nullptr) conversation_.Say("system", instructions->get<std::string>());
    ReadInput();
    ReadTools();
    ReadToolChoice();
    ReadForm();
    ReadReasoning();
    ReadLogprobs();
    const int64_t most = fields_.Integer("max_output_tokens", 0, 1, Fields::kAny);
    if (!fields_.ok()) return;
    for (const char* name :
         {"input", "instructions", "text", "reasoning", "include", "max_output_tokens", "store",
          "previous_response_id", "conversation", "background", "prompt", "truncation",
          "max_tool_calls", "stream_options", "messages", "max_tokens", "max_completion_tokens"}) {
      body_.erase(name);
    }
    body_["messages"] = conversation_.TakeMessages();
    if (most > 0) body_["max_completion_tokens"] = most;
  }

  // What the answer repeats; `request` knows the values of what was left out.
  std::string Echo(const GenerationRequest& request) {
    const auto set = [&](const char* name, const Json& value) {
      if (!echo_.contains(name)) echo_[name] = value;
    };
    set("temperature", request.sampling.temperature);
    set("top_p", request.sampling.top_p);
    set("tools", Json::array());
    set("tool_choice", "auto");
    set("parallel_tool_calls", true);
    set("text", {{"format", {{"type", "text"}}}});
    set("metadata", Json::object());
    for (const char* name : {"instructions", "max_output_tokens", "reasoning", "user"}) {
      set(name, nullptr);
    }
    echo_["previous_response_id"] = nullptr;
    echo_["store"] = false;
    echo_["background"] = false;
    echo_["truncation"] = "disabled";
    return echo_.dump();
  }

 private:
  void ReadEcho() {
    constexpr std::array kNames = {"instructions",
                                   "max_output_tokens",
                                   "temperature",
                                   "top_p",
                                   "tools",
                                   "tool_choice",
                                   "text",
                                   "parallel_tool_calls",
                                   "reasoning",
                                   "metadata",
                                   "user",
                                   "top_logprobs",
                                   "prompt_cache_key",
                                   "safety_identifier"};
    for (const char* name : kNames) {
      if (const Json* value = fields_.Find(name)) echo_[name] = *value;
    }
  }

  // What needs earlier responses to be kept, and what else is not there.
  void RefuseState() {
    constexpr const char* kRule =
        "is not supported: nothing is kept between requests; 'input' may have the whole "
        "conversation";
    for (const char* name : {"previous_response_id", "conversation"}) {
      if (fields_.Find(name) != nullptr) fields_.Fail(name, kRule);
    }
    if (fields_.Find("prompt") != nullptr) fields_.Fail("prompt", "is not supported");
    if (fields_.Bool("background", false)) fields_.Fail("background", "may only be false");
    fields_.Bool("store", false);  // nothing is stored, whatever is said
    const Json* truncation = fields_.Find("truncation");
    if (truncation != nullptr && *truncation != "disabled") {
      fields_.Fail("truncation", "may only be 'disabled'");
    }
    for (const char* name : {"messages", "max_tokens", "max_completion_tokens"}) {
      if (fields_.Find(name) == nullptr) continue;
      fields_.Fail(name, "is a field of chats; here it is 'input' or 'max_output_tokens'");
    }
    RefuseChoices(fields_);
  }

  void ReadInput() {
    const Json* input = fields_.Find("input");
    if (input == nullptr || (!input->is_string() && !input->is_array()) || input->empty()) {
      return fields_.Fail("input", "must be a string, or a list of at least one item");
    }
    if (input->is_string()) return conversation_.Say("user", input->get<std::string>());
    if (!CountIsAllowed(fields_, "input", kMaxMessages)) return;
    for (size_t i = 0; i < input->size() && fields_.ok(); ++i) {
      const char* const rule = AddItem((*input)[i]);
      if (rule == nullptr) continue;
      fields_.Fail(BadRequest(
          "input", absl::StrCat("'input[", i, "]' must ", rule, ", got ", Shown((*input)[i]))));
    }
  }

  // Null, or what the item must be.
  const char* AddItem(const Json& item) {
    const std::string* const type = StringIn(item, "type");
    const std::string* const role = StringIn(item, "role");
    if (type == nullptr || *type == "message") {
      if (role == nullptr) return "be a message with a 'role', or an item with a 'type'";
      auto text =
          TextOf(MemberOf(item, "content"), {"input_text", "output_text", "text", "refusal"});
      if (!text) return "have a string or a list of text parts as 'content'";
      conversation_.Say(*role == "developer" ? "system" : *role, *std::move(text));
      return nullptr;
    }
    if (*type == "function_call") {
      const std::string *id = StringIn(item, "call_id"), *name = StringIn(item, "name"),
                        *arguments = StringIn(item, "arguments");
      if (id == nullptr || name == nullptr || arguments == nullptr) {
        return "have strings as 'call_id', 'name' and 'arguments'";
      }
      conversation_.Call(*id, *name, *arguments);
      return nullptr;
    }
    if (*type == "function_call_output") {
      const std::string* const id = StringIn(item, "call_id");
      auto text = TextOf(MemberOf(item, "output"), {"input_text", "output_text", "text"});
      if (id == nullptr || !text) {
        return "have a string as 'call_id', and a string or a list of text parts as 'output'";
      }
      conversation_.Result(*id, *std::move(text));
      return nullptr;
    }
    if (*type == "reasoning") {
      // Of another server it may be encrypted: it is left out.
      auto text = TextOf(MemberOf(item, "content"), {"reasoning_text", "text"});
      if (text) conversation_.Reason(*text);
      return nullptr;
    }
    if (*type == "item_reference") return "be the item itself: nothing is kept between requests";
    return "be of type 'message', 'function_call', 'function_call_output' or 'reasoning'";
  }

  void ReadTools() {
    CheckToolCount(fields_);
    const auto tools = body_.find("tools");
    if (tools == body_.end() || tools->is_null() || !fields_.ok()) return;
    if (!tools->is_array()) return fields_.Fail("tools", "must be a list of functions");
    for (size_t i = 0; i < tools->size(); ++i) {
      Json& tool = (*tools)[i];
      const std::string* const type = StringIn(tool, "type");
      if (type == nullptr || *type != "function" || StringIn(tool, "name") == nullptr) {
        return fields_.Fail(
            BadRequest("tools", absl::StrCat("'tools[", i,
                                             "]' must be of type 'function' and have a 'name', "
                                             "got ",
                                             Shown(tool))));
      }
      Json function = std::move(tool);
      function.erase("type");
      function.erase("strict");  // always is
      tool = {{"type", "function"}, {"function", std::move(function)}};
    }
  }

  void ReadToolChoice() {
    const auto choice = body_.find("tool_choice");
    if (choice == body_.end() || !choice->is_object() || !fields_.ok()) return;
    const std::string* const type = StringIn(*choice, "type");
    if (type != nullptr && *type == "function" && StringIn(*choice, "name") != nullptr) {
      *choice = {{"type", "function"}, {"function", {{"name", (*choice)["name"]}}}};
      return;
    }
    if (type != nullptr && *type == "allowed_tools") return AllowTools(*choice);
    fields_.Fail("tool_choice",
                 "must be 'none', 'auto', 'required', or of type 'function' with a 'name', or "
                 "'allowed_tools' with 'mode' and 'tools'");
  }

  // As a chat has it.
  void AllowTools(Json& choice) {
    Json mode = MemberOf(choice, "mode");
    Json tools = MemberOf(choice, "tools");
    if (!mode.is_string() || !tools.is_array() || tools.size() > kMaxTools) {
      return fields_.Fail("tool_choice", "of type 'allowed_tools' must have 'mode' and 'tools'");
    }
    for (Json& tool : tools) {
      tool = {{"type", "function"}, {"function", {{"name", MemberOf(tool, "name")}}}};
    }
    choice = {{"type", "allowed_tools"},
              {"allowed_tools", {{"mode", std::move(mode)}, {"tools", std::move(tools)}}}};
  }

  void ReadForm() {
    const Json* text = fields_.Find("text");
    if (text == nullptr) return;
    if (!text->is_object()) return fields_.Fail("text", "must be an object");
    const Json& format = MemberOf(*text, "format");
    if (format.is_null()) return;
    const std::string* const type = StringIn(format, "type");
    if (type == nullptr) return fields_.Fail("text", "must have a 'format' with a 'type'");
    if (*type == "json_schema") {
      if (!format.contains("schema")) {
        return fields_.Fail("text", "must have a 'format' with a 'schema'");
      }
      body_["response_format"] = {{"type", *type}, {"json_schema", {{"schema", format["schema"]}}}};
    } else {
      body_["response_format"] = {{"type", *type}};
    }
  }

  void ReadReasoning() {
    const Json* reasoning = fields_.Find("reasoning");
    if (reasoning == nullptr) return;
    if (!reasoning->is_object()) return fields_.Fail("reasoning", "must be an object");
    Json effort = MemberOf(*reasoning, "effort");
    if (!effort.is_null()) body_["reasoning_effort"] = std::move(effort);
  }

  void ReadLogprobs() {
    const Json* include = fields_.Find("include");
    const bool all_strings =
        include == nullptr ||
        (include->is_array() && std::all_of(include->begin(), include->end(),
                                            [](const Json& one) { return one.is_string(); }));
    if (!all_strings) return fields_.Fail("include", "must be a list of strings");
    const bool wanted =
        include != nullptr && std::find(include->begin(), include->end(),
                                        "message.output_text.logprobs") != include->end();
    if (wanted || fields_.Integer("top_logprobs", 0, 0, kMaxTopLogprobs) > 0) {
      body_["logprobs"] = true;
    }
  }

  Json& body_;
  Fields& fields_;
  Conversation conversation_;
  Json echo_ = Json::object();
};

}  // namespace

Parsed<GenerationRequest> ParseResponses(std::string_view body, const SamplingDefaults& defaults) {
  Parsed<Json> json = ParseBody(body);
  if (auto* error = std::get_if<ApiError>(&json)) return std::move(*error);
  auto& chat = std::get<Json>(json);
  Fields fields(chat);
  ResponsesReader reader(chat, fields);
  reader.Read();
  if (!fields.ok()) return *fields.error();
  Parsed<GenerationRequest> parsed = ParseChatFields(std::move(chat), defaults);
  if (auto* request = std::get_if<GenerationRequest>(&parsed)) {
    request->api = Api::kResponses;
    request->echoed = reader.Echo(*request);
  }
  return parsed;
}

}  // namespace specfabric::gateway
