#include "gateway/tool_format.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gateway/grammar_rules.h"
#include "gateway/json_parse.h"

namespace specfabric::gateway {
namespace {

constexpr std::array kFormats = {ToolFormat::kHermes, ToolFormat::kLlama3, ToolFormat::kMistral,
                                 ToolFormat::kJson};

// A call as an object, for a schema. What the tool's schema defines for its references
// ("#/$defs/...") moves with them to the top.
Json CallSchema(const Tool& tool, const char* arguments) {
  Json parameters = Json::parse(tool.parameters);
  Json schema = {{"type", "object"}};
  for (const char* definitions : {"$defs", "definitions"}) {
    if (!parameters.contains(definitions)) continue;
    schema[definitions] = std::move(parameters[definitions]);
    parameters.erase(definitions);
  }
  schema["properties"] = {{"name", {{"const", tool.name}}}};
  schema["properties"][arguments] = std::move(parameters);
  schema["required"] = {"name", arguments};
  schema["additionalProperties"] = false;
  return schema;
}

// One of the calls.
std::string CallRule(const std::vector<Tool>& tools, const char* arguments) {
  std::vector<std::string> rules;
  for (const Tool& tool : tools) {
    rules.push_back(JsonRule(CallSchema(tool, arguments)));
  }
  return absl::StrJoin(rules, " | ");
}

}  // namespace

const char* Name(ToolFormat format) {
  switch (format) {
    case ToolFormat::kHermes:
      return "hermes";
    case ToolFormat::kLlama3:
      return "llama3_json";
    case ToolFormat::kMistral:
      return "mistral";
    case ToolFormat::kJson:
      break;
  }
  return "json";
}

std::optional<ToolFormat> ParseToolFormat(std::string_view name) {
  for (const ToolFormat format : kFormats) {
    if (name == Name(format)) return format;
  }
  return std::nullopt;
}

ToolFormat FormatOfTemplate(std::string_view chat_template) {
  const auto has = [&](std::string_view mark) {
    return chat_template.find(mark) != std::string_view::npos;
  };
  if (has("[TOOL_CALLS]")) return ToolFormat::kMistral;
  if (has("<tool_call>")) return ToolFormat::kHermes;
  if (has("<|python_tag|>") || has("\"parameters\": dictionary")) return ToolFormat::kLlama3;
  return ToolFormat::kJson;
}

ToolMarks MarksOf(ToolFormat format) {
  switch (format) {
    case ToolFormat::kHermes:
      return {"<tool_call>", "</tool_call>"};
    case ToolFormat::kLlama3:
      return {"<|python_tag|>", ""};
    case ToolFormat::kMistral:
      return {"[TOOL_CALLS]", ""};
    case ToolFormat::kJson:
      break;
  }
  return {};
}

base::Grammar CallsOf(ToolFormat format, const std::vector<Tool>& tools, bool parallel,
                      std::optional<base::TokenId> open, std::optional<base::TokenId> close,
                      const base::Grammar* instead) {
  const ToolMarks marks = MarksOf(format);
  const bool wraps = format == ToolFormat::kHermes;
  const bool list = format == ToolFormat::kMistral || format == ToolFormat::kJson;
  const char* const one = wraps ? "wrapped" : "call";
  const char* const between = wraps ? "\"\\n\"" : list ? "\", \"" : "\"; \"";
  std::string lark = instead == nullptr ? "start: calls\n" : "start: calls | instead\n";
  if (instead != nullptr) absl::StrAppend(&lark, "instead: ", RuleOf(*instead), "\n");
  lark += "calls:";
  if (format == ToolFormat::kMistral) absl::StrAppend(&lark, " ", MarkRule(marks.open, open));
  if (list) lark += " \"[\"";
  absl::StrAppend(&lark, " ", one);
  if (parallel) absl::StrAppend(&lark, " (", between, " ", one, ")*");
  if (list) lark += " \"]\"";
  const char* const arguments = format == ToolFormat::kLlama3 ? "parameters" : "arguments";
  absl::StrAppend(&lark, "\ncall: ", CallRule(tools, arguments), "\n");
  if (wraps) {
    absl::StrAppend(&lark, "wrapped: ", MarkRule(marks.open, open), " \"\\n\" call \"\\n\" ",
                    MarkRule(marks.close, close), "\n");
  }
  return {base::GrammarLanguage::kLark, std::move(lark)};
}

}  // namespace specfabric::gateway
