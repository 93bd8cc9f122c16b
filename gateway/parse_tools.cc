#include "gateway/parse_tools.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
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

constexpr char kChoiceRule[] =
    R"(must be 'none', 'auto', 'required', {"type": "function", "function": {"name": ...}} with )"
    R"(the name of a tool, or {"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": )"
    R"([...]}} with 'auto' or 'required' and a list of such functions)";

// The name in {"type": "function", "function": {"name": ...}}; empty where there is none.
std::string_view NameIn(const Json& value) {
  const std::string* const name = StringIn(MemberOf(value, "function"), "name");
  return name == nullptr ? std::string_view() : *name;
}

// The only tool that may be called, by its name. The template sees all of them.
bool Choose(const Json& choice, GenerationRequest& request) {
  const std::string_view name = NameIn(choice);
  std::erase_if(request.tools, [&](const Tool& tool) { return tool.name != name; });
  if (request.tools.empty()) return false;
  request.tools.resize(1);
  request.tool_use = ToolUse::kRequired;
  request.parallel_tool_calls = false;
  return true;
}

// The tools of `list` that may be called, by their names, whether or not one must be. The template
// sees no others: a model that calls by itself could call those.
bool Allow(const Json& choice, const Json& list, GenerationRequest& request) {
  const Json& allowed = MemberOf(choice, "allowed_tools");
  const Json &mode = MemberOf(allowed, "mode"), &tools = MemberOf(allowed, "tools");
  if ((mode != "auto" && mode != "required") || !tools.is_array()) return false;
  std::set<std::string_view> names;
  for (const Json& tool : tools) names.insert(NameIn(tool));
  std::erase_if(request.tools, [&](const Tool& tool) { return !names.contains(tool.name); });
  if (request.tools.empty()) return false;
  Json shown = Json::array();
  for (const Json& tool : list) {
    if (names.contains(NameIn(tool))) shown.push_back(tool);
  }
  request.tools_json = shown.dump();
  if (mode == "required") request.tool_use = ToolUse::kRequired;
  return true;
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
    const bool several = MemberOf(*choice, "type") == "allowed_tools";
    const bool good =
        several ? Allow(*choice, *list, request) : choice->is_object() && Choose(*choice, request);
    if (!good) return fields.Fail("tool_choice", kChoiceRule);
  }
  if (request.tool_use == ToolUse::kRequired && !request.grammar.empty()) {
    fields.Fail(BadRequest(
        "tool_choice", absl::StrCat("'tool_choice' requires a call, and '", request.grammar_field,
                                    "' another form of the answer; one may")));
  }
}

}  // namespace specfabric::gateway
