#include "gateway/parse_tools.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/parsed.h"

namespace specfabric::gateway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kTwo[] = R"([{"type": "function", "function": {"name": "get_weather", "parameters":
  {"type": "object", "properties": {"city": {"type": "string"}}}, "strict": true}},
  {"type": "function", "function": {"name": "f-2.x"}}])";

std::string Chat(const std::string& fields) {
  return R"({"messages": [{"role": "user", "content": "a"}])" + fields + "}";
}

TEST(ParseToolsTest, ToolsAreAllowedByDefault) {
  const auto request = Good(ParseChat(Chat(std::string(R"(, "tools": )") + kTwo)));
  EXPECT_EQ(request.tool_use, ToolUse::kAllowed);
  ASSERT_EQ(request.tools.size(), 2u);
  EXPECT_EQ(request.tools[0].name, "get_weather");
  EXPECT_EQ(request.tools[0].parameters,
            R"({"type":"object","properties":{"city":{"type":"string"}}})");
  EXPECT_EQ(request.tools[1].parameters, R"({"type":"object","properties":{}})");
  EXPECT_THAT(request.tools_json, HasSubstr("\"strict\":true"));
  EXPECT_TRUE(request.parallel_tool_calls);
  EXPECT_TRUE(request.grammar.empty());
}

TEST(ParseToolsTest, Choices) {
  const auto with = [](const std::string& choice) {
    return Good(ParseChat(Chat(std::string(R"(, "tools": )") + kTwo + ", " + choice)));
  };
  const auto none = with(R"("tool_choice": "none")");
  EXPECT_EQ(none.tool_use, ToolUse::kNone);
  EXPECT_TRUE(none.tools_json.empty() && none.tools.empty());
  EXPECT_EQ(with(R"("tool_choice": "auto", "parallel_tool_calls": false)").parallel_tool_calls,
            false);
  EXPECT_EQ(with(R"("tool_choice": "required")").tool_use, ToolUse::kRequired);
  const auto named = with(R"("tool_choice": {"type": "function", "function": {"name": "f-2.x"}})");
  EXPECT_EQ(named.tool_use, ToolUse::kRequired);
  ASSERT_EQ(named.tools.size(), 1u);
  EXPECT_EQ(named.tools[0].name, "f-2.x");
  EXPECT_FALSE(named.parallel_tool_calls);
  EXPECT_THAT(named.tools_json, HasSubstr("get_weather")) << "the template sees all of them";
  const auto allowed = [&](const std::string& mode) {
    return with(R"("tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": ")" + mode +
                R"(", "tools": [{"type": "function", "function": {"name": "f-2.x"}},
                                {"type": "function", "function": {"name": "other"}}]}})");
  };
  for (const char* mode : {"auto", "required"}) {
    const auto some = allowed(mode);
    EXPECT_EQ(some.tool_use, mode[0] == 'a' ? ToolUse::kAllowed : ToolUse::kRequired);
    ASSERT_EQ(some.tools.size(), 1u);
    EXPECT_EQ(some.tools[0].name, "f-2.x");
    EXPECT_TRUE(some.parallel_tool_calls);
    EXPECT_THAT(some.tools_json, HasSubstr("f-2.x"));
    EXPECT_THAT(some.tools_json, Not(HasSubstr("get_weather")));
  }
  for (const char* harmless : {"\"none\"", "\"auto\"", "null"}) {
    const auto without = Good(ParseChat(Chat(std::string(R"(, "tool_choice": )") + harmless)));
    EXPECT_EQ(without.tool_use, ToolUse::kNone);
  }
}

TEST(ParseToolsTest, WhatIsNoTool) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"tools", R"("tools": {})"},
      {"tools", R"("tools": ["f"])"},
      {"tools", R"("tools": [{"type": "function"}])"},
      {"tools", R"("tools": [{"type": "web_search"}])"},
      {"tools", R"("tools": [{"type": "function", "function": {"name": ""}}])"},
      {"tools", R"("tools": [{"type": "function", "function": {"name": "a b"}}])"},
      {"tools", R"("tools": [{"type": "function", "function": {"name": "f", "parameters": []}}])"},
      {"tool_choice", R"("tool_choice": "required")"},
      {"tool_choice", std::string(R"("tools": )") + kTwo + R"(, "tool_choice": "any")"},
      {"tool_choice", std::string(R"("tools": )") + kTwo +
                          R"(, "tool_choice": {"type": "function", "function": {"name": "g"}})"},
      {"tool_choice",
       std::string(R"("tools": )") + kTwo + R"(, "tool_choice": "required", "guided_regex": "a")"},
      {"tool_choice",
       std::string(R"("tools": )") + kTwo + R"(, "tool_choice": {"type": "allowed_tools"})"},
      {"tool_choice", std::string(R"("tools": )") + kTwo +
                          R"(, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode":
                          "required", "tools": [{"type": "function", "function": {"name": "g"}}]}})"},
      {"tool_choice", std::string(R"("tools": )") + kTwo +
                          R"(, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode":
                          "any", "tools": [{"type": "function", "function": {"name": "f-2.x"}}]}})"},
      {"parallel_tool_calls", R"("parallel_tool_calls": 1)"},
  };
  for (const auto& [param, fields] : cases) {
    SCOPED_TRACE(fields);
    const ApiError error = Bad(ParseChat(Chat(", " + fields)));
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.param, param);
    EXPECT_THAT(error.message, HasSubstr("'" + param));
    EXPECT_THAT(error.message, Not(HasSubstr("\n")));
  }
}

}  // namespace
}  // namespace specfabric::gateway
