#ifndef SPECFABRIC_GATEWAY_PREPARE_CHAT_H_
#define SPECFABRIC_GATEWAY_PREPARE_CHAT_H_

// The prompt of a chat, and what its template says about the form of the answer.

#include <optional>
#include <string>

#include "base/types.h"
#include "gateway/api_error.h"
#include "gateway/openai_parse.h"
#include "gateway/reasoning.h"
#include "gateway/tool_format.h"
#include "tokenizer/tokenizer.h"

namespace specfabric::gateway {

// The conversation as text, up to where the answer begins.
Parsed<std::string> RenderChat(const TokenizeRequest& chat, const tokenizer::Tokenizer& tokenizer);

// A mark in a model's text, and the token that it is, if it is one.
struct Mark {
  std::string text;
  std::optional<base::TokenId> token = {};
  bool special = false;  // shows in the text with skip_special_tokens false alone
};

// How a model writes what is not just text. Found once, as serving begins.
struct ChatFormat {
  ToolFormat tools = ToolFormat::kJson;
  Mark call_open, call_close;
  std::optional<ReasoningMarks> reasoning;
  Mark reasoning_open, reasoning_close;
};
// `tools`: how calls are written, unless the template says it.
ChatFormat ChatFormatOf(const tokenizer::Tokenizer& tokenizer,
                        std::optional<ToolFormat> tools = std::nullopt);

// Before the prompt of a chat is known: how calls are written, and the grammar of an answer that
// must have some.
void PrepareTools(const ChatFormat& format, GenerationRequest& request);

// Once its prompt is: where the answer may have reasoning before its text. A grammar then describes
// what follows it.
void PrepareReasoning(const ChatFormat& format, const std::string& prompt,
                      GenerationRequest& request);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_PREPARE_CHAT_H_
