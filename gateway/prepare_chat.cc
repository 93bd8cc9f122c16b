#include "gateway/prepare_chat.h"

#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gateway/json_fields.h"
#include "gateway/text_marks.h"

namespace specfabric::gateway {
namespace {

Mark MarkOf(const std::string& text, const tokenizer::Tokenizer& tokenizer) {
  Mark mark = {text};
  if (text.empty()) return mark;
  const auto ids = tokenizer.Encode(text, /*add_special_tokens=*/false);
  if (!ids.ok() || ids->size() != 1 || ids->front() == base::kNoToken) return mark;
  const auto decoded = tokenizer.Decode(*ids, /*skip_special_tokens=*/false);
  if (!decoded.ok() || *decoded != text) return mark;
  mark.token = ids->front();
  mark.special = tokenizer.IsSpecial(*mark.token);
  return mark;
}

// The text of the last message, without white space around it.
std::string FinalText(const std::string& messages) {
  const Json list = Json::parse(messages, nullptr, /*allow_exceptions=*/false);
  const Json& last = list.back();
  if (!last.contains("content") || !last["content"].is_string()) return "";
  const auto& text = last["content"].get_ref<const std::string&>();
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

// Templates end a message; here the last one is left open, where its text ends. White space at that
// end is left out, as most templates leave it out.
Parsed<std::string> WithoutEnd(std::string rendered, const std::string& messages) {
  const std::string text = FinalText(messages);
  const size_t at = text.empty() ? std::string::npos : rendered.rfind(text);
  if (at == std::string::npos) {
    return BadRequest("continue_final_message",
                      "'continue_final_message' needs a last message with a text that the chat "
                      "template writes as it is");
  }
  rendered.resize(at + text.size());
  return rendered;
}

}  // namespace

Parsed<std::string> RenderChat(const TokenizeRequest& chat, const tokenizer::Tokenizer& tokenizer) {
  absl::StatusOr<std::string> rendered = tokenizer.ApplyChatTemplate(
      chat.messages, chat.add_generation_prompt, chat.tools_json, chat.template_variables);
  if (!rendered.ok()) return FromStatus(rendered.status(), "messages");
  if (chat.continue_final_message) return WithoutEnd(*std::move(rendered), chat.messages);
  return *std::move(rendered);
}

ChatFormat ChatFormatOf(const tokenizer::Tokenizer& tokenizer, std::optional<ToolFormat> tools) {
  const std::string chat_template = tokenizer.ToolTemplate();
  ChatFormat format;
  format.tools = tools.value_or(FormatOfTemplate(chat_template));
  const ToolMarks marks = MarksOf(format.tools);
  format.call_open = MarkOf(marks.open, tokenizer);
  format.call_close = MarkOf(marks.close, tokenizer);
  format.reasoning = ReasoningMarksOf(chat_template);
  if (format.reasoning) {
    format.reasoning_open = MarkOf(format.reasoning->open, tokenizer);
    format.reasoning_close = MarkOf(format.reasoning->close, tokenizer);
  }
  return format;
}

// Marks that are special tokens must show in the text, where calls are looked for.
void PrepareTools(const ChatFormat& format, GenerationRequest& request) {
  if (request.tool_use == ToolUse::kNone) return;
  request.tool_format = format.tools;
  if (format.call_open.special) request.skip_special_tokens = false;
  const bool may_say = request.tool_use == ToolUse::kAllowed;
  // Without a form of its own, an answer that may call tools may be any text.
  if (may_say && request.grammar.empty()) return;
  const base::Grammar instead = request.grammar;
  request.grammar =
      CallsOf(request.tool_format, request.tools, request.parallel_tool_calls,
              format.call_open.token, format.call_close.token, may_say ? &instead : nullptr);
  if (!may_say) request.grammar_field = "tools";
  request.rules.masked = true;
}

void PrepareReasoning(const ChatFormat& format, const std::string& prompt,
                      GenerationRequest& request) {
  if (!format.reasoning || (!request.split_reasoning && request.grammar.empty())) return;
  // An answer that goes on with a text has reasoned.
  if (request.continue_final_message) return;
  const ReasoningStart start = ReasoningStartOf(prompt, *format.reasoning);
  if (start == ReasoningStart::kClosed) return;
  if (format.reasoning_close.special) request.skip_special_tokens = false;
  const Reasoning reasoning = {*format.reasoning, start, format.reasoning_close.token};
  if (!request.grammar.empty() && !request.grammar_of_reasoning) {
    // To a grammar the text of other tokens is text.
    const auto special = [](const Mark& mark) { return mark.special ? mark.token : std::nullopt; };
    request.grammar = AfterReasoning(request.grammar, reasoning, special(format.reasoning_open),
                                     special(format.reasoning_close));
  }
  if (request.split_reasoning) request.reasoning = reasoning;
}

}  // namespace specfabric::gateway
