#ifndef SPECFABRIC_GATEWAY_TOOL_FORMAT_H_
#define SPECFABRIC_GATEWAY_TOOL_FORMAT_H_

// How a model writes calls of tools, and the grammars that make it write some.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/grammar.h"
#include "base/types.h"

namespace specfabric::gateway {

enum class ToolFormat : uint8_t {
  kHermes,   // <tool_call>{"name": ..., "arguments": {...}}</tool_call>, several (Hermes, Qwen)
  kLlama3,   // {"name": ..., "parameters": {...}}, several with ; between them, perhaps after
             // <|python_tag|> (Llama 3.1 and later)
  kMistral,  // [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]
  kJson,     // {"name": ..., "arguments": {...}}, or a list of these
};

// "hermes", "llama3_json", "mistral", "json".
const char* Name(ToolFormat format);
std::optional<ToolFormat> ParseToolFormat(std::string_view name);

// What the marks in a chat template say; kJson if there are none.
ToolFormat FormatOfTemplate(std::string_view chat_template);

// One of a request's tools.
struct Tool {
  std::string name;
  std::string parameters;  // JSON schema of the arguments, an object
};

// What begins and ends a call, or a list of them; empty: nothing does.
struct ToolMarks {
  std::string open, close;
};
ToolMarks MarksOf(ToolFormat format);

// The texts that call at least one of the tools, and at most one if not `parallel`. open, close:
// the tokens that MarksOf are; unset where they are several tokens, that is, plain text. `instead`:
// what an answer without calls may be, or null where there must be one.
base::Grammar CallsOf(ToolFormat format, const std::vector<Tool>& tools, bool parallel,
                      std::optional<base::TokenId> open, std::optional<base::TokenId> close,
                      const base::Grammar* instead = nullptr);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_TOOL_FORMAT_H_
