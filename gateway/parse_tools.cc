#include "gateway/parse_tools.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace specfabric::gateway {
namespace {

constexpr size_t kLongestName = 128;

bool IsName(const Json& value) {
  if (!value.is_string()) return false;
  const auto& name = value.get_ref<const std::string&>();
  const auto is_good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  return !name.empty() && name.size() <= kLongestName &&
         std::all_of(name.begin(), name.end(), is_good);
}

// Nothing if `entry` is no function.
std::optional<Tool> ToolOf(const Json& entry) {
  if (!entry.is_object()) return std::nullopt;
  const auto type = entry.find("type"), function = entry.find("function");
  if (type == entry.end() || *type != "function") return std::nullopt;
  if (function == entry.end() || !function->is_object()) return std::nullopt;
  const auto name = function->find("name"), parameters = function->find("parameters");
  if (name == function->end() || !IsName(*name)) return std::nullopt;
  const bool has_parameters = parameters != function->end() && !parameters->is_null();
  if (has_parameters && !parameters->is_object()) return std::nullopt;
  return Tool{name->get<std::string>(),
              has_parameters ? parameters->dump() : R"({"type":"object","properties":{}})"};
}

bool ReadList(Fields& fields, const Json& list, GenerationRequest& request) {
  if (!list.is_array()) {
    fields.Fail("tools", "must be a list of functions");
    return false;
  }
  for (size_t i = 0; i < list.size(); ++i) {
    std::optional<Tool> tool = ToolOf(list[i]);
    if (!tool) {
      fields.Fail(BadRequest(
          "tools", absl::StrCat("'tools[", i,
                                "]' must be of type 'function' and have a 'function' with a 'name' "
                                "(letters, digits, _ - .) and, if any, an object as 'parameters', "
                                "got ",
                                Shown(list[i]))));
      return false;
    }
    request.tools.push_back(*std::move(tool));
  }
  return true;
}

// The only tool that may be called, by its name.
void Choose(Fields& fields, const Json& choice, GenerationRequest& request) {
  constexpr const char* kRule =
      "must be 'none', 'auto', 'required' or {\"type\": \"function\", \"function\": {\"name\": "
      "...}} with the name of a tool";
  const auto function = choice.is_object() ? choice.find("function") : choice.end();
  if (!choice.is_object() || function == choice.end() || !function->is_object() ||
      !function->contains("name") || !(*function)["name"].is_string()) {
    return fields.Fail("tool_choice", kRule);
  }
  const auto& name = (*function)["name"].get_ref<const std::string&>();
  std::erase_if(request.tools, [&](const Tool& tool) { return tool.name != name; });
  if (request.tools.empty()) return fields.Fail("tool_choice", kRule);
  request.tools.resize(1);
  request.tool_use = ToolUse::kRequired;
  request.parallel_tool_calls = false;
}

}  // namespace

void ReadTools(Fields& fields, GenerationRequest& request) {
  const Json* list = fields.Find("tools");
  const Json* choice = fields.Find("tool_choice");
  request.parallel_tool_calls = fields.Bool("parallel_tool_calls", true);
  if (list == nullptr || (list->is_array() && list->empty())) {
    const bool harmless = choice == nullptr || *choice == "none" || *choice == "auto";
    if (!harmless) fields.Fail("tool_choice", "may only be 'none' or 'auto' without 'tools'");
    return;
  }
  if (!ReadList(fields, *list, request)) return;
  if (choice != nullptr && *choice == "none") return request.tools.clear();
  request.tools_json = list->dump();
  request.tool_use = ToolUse::kAllowed;
  if (choice != nullptr && *choice == "required") {
    request.tool_use = ToolUse::kRequired;
  } else if (choice != nullptr && *choice != "auto") {
    Choose(fields, *choice, request);
  }
  if (request.tool_use == ToolUse::kRequired && !request.grammar.empty()) {
    fields.Fail(BadRequest(
        "tool_choice", absl::StrCat("'tool_choice' requires a call, and '", request.grammar_field,
                                    "' another form of the answer; one may")));
  }
}

}  // namespace specfabric::gateway
