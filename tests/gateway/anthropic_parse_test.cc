#include "gateway/anthropic_parse.h"

#include <string>
#include <utility>
#include <vector>

#include "gateway/json_parse.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/parsed.h"

namespace specfabric::gateway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

GenerationRequest Read(const std::string& body) { return Good(ParseAnthropic(body, {})); }

std::string Asked(const std::string& more) {
  return R"({"max_tokens": 9, "messages": [{"role": "user", "content": "a"}])" + more + "}";
}

TEST(AnthropicParseTest, TextsAndBlocks) {
  const auto request = Read(
      R"({"model": "m", "max_tokens": 12, "system": [{"type": "text", "text": "s",
                                                      "cache_control": {"type": "ephemeral"}}],
          "stop_sequences": ["END"], "top_k": 3, "stream": true, "metadata": {"user_id": "u"},
          "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"},
                                         {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [
              {"type": "thinking", "thinking": "hm", "signature": ""},
              {"type": "text", "text": "c"},
              {"type": "tool_use", "id": "x", "name": "f", "input": {"a": 1}},
              {"type": "tool_use", "id": "y", "name": "g", "input": {}}]},
            {"role": "user", "content": [
              {"type": "tool_result", "tool_use_id": "x", "content": "1"},
              {"type": "tool_result", "tool_use_id": "y",
               "content": [{"type": "text", "text": "2"}]},
              {"type": "text", "text": "d"}]}]})");
  EXPECT_EQ(request.api, Api::kAnthropic);
  EXPECT_EQ(request.max_tokens, 12);
  EXPECT_EQ(request.stop, std::vector<std::string>{"END"});
  EXPECT_EQ(request.sampling.top_k, 3);
  EXPECT_TRUE(request.stream);
  EXPECT_FALSE(request.continue_final_message);
  EXPECT_TRUE(request.ignored_fields.empty());
  EXPECT_EQ(Json::parse(request.messages), Json::parse(R"([
        {"role": "system", "content": "s"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "c", "reasoning_content": "hm", "tool_calls": [
          {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}},
          {"id": "y", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "x", "content": "1"},
        {"role": "tool", "tool_call_id": "y", "content": "2"},
        {"role": "user", "content": "d"}])"));
}

TEST(AnthropicParseTest, TheAnswerGoesOnWithTheAssistantsText) {
  const auto request = Read(R"({"max_tokens": 1, "messages": [
      {"role": "user", "content": "a"}, {"role": "assistant", "content": "The"}]})");
  EXPECT_TRUE(request.continue_final_message);
  EXPECT_FALSE(request.add_generation_prompt);
}

TEST(AnthropicParseTest, Tools) {
  const auto with = [](const std::string& more) {
    return Read(Asked(R"(, "tools": [
      {"name": "f", "description": "d", "input_schema": {"type": "object"}},
      {"type": "custom", "name": "g", "input_schema": {"type": "object", "properties": {}}}])" +
                      more));
  };
  const auto plain = with("");
  EXPECT_EQ(plain.tool_use, ToolUse::kAllowed);
  EXPECT_EQ(plain.tools[0].parameters, R"({"type":"object"})");
  EXPECT_THAT(plain.tools_json, HasSubstr(R"("name":"f","description":"d")"));
  const auto any = with(R"(, "tool_choice": {"type": "any", "disable_parallel_tool_use": true})");
  EXPECT_EQ(any.tool_use, ToolUse::kRequired);
  EXPECT_FALSE(any.parallel_tool_calls);
  const auto named = with(R"(, "tool_choice": {"type": "tool", "name": "g"})");
  ASSERT_EQ(named.tools.size(), 1u);
  EXPECT_EQ(named.tools[0].name, "g");
  EXPECT_EQ(with(R"(, "tool_choice": {"type": "none"})").tool_use, ToolUse::kNone);
  EXPECT_EQ(with(R"(, "tool_choice": {"type": "auto"})").tool_use, ToolUse::kAllowed);
}

TEST(AnthropicParseTest, FormAndThinking) {
  const auto form = Read(Asked(
      R"(, "output_config": {"format": {"type": "json_schema", "schema": {"type": "integer"}},
                             "effort": "low"})"));
  EXPECT_EQ(form.grammar.source, R"({"type":"integer"})");
  EXPECT_EQ(Json::parse(form.template_variables)["reasoning_effort"], "low");
  const auto thinking = [](const char* type) {
    const auto request = Read(
        Asked(R"(, "thinking": {"type": ")" + std::string(type) + R"(", "budget_tokens": 1024})"));
    return request.template_variables;
  };
  EXPECT_EQ(thinking("enabled"), R"({"enable_thinking":true})");
  EXPECT_EQ(thinking("disabled"), R"({"enable_thinking":false})");
  EXPECT_EQ(thinking("adaptive"), "");
}

TEST(AnthropicParseTest, CountedTokens) {
  const auto request = Good(ParseCountTokens(
      R"({"model": "m", "system": "s", "messages": [{"role": "user", "content": "a"}],
          "tools": [{"name": "f", "input_schema": {"type": "object"}}]})"));
  EXPECT_EQ(request.model, "m");
  EXPECT_THAT(request.messages, HasSubstr(R"("content":"a")"));
  EXPECT_THAT(request.tools_json, HasSubstr(R"("name":"f")"));
  EXPECT_TRUE(request.add_generation_prompt);
  EXPECT_FALSE(request.add_special_tokens);
  EXPECT_EQ(Bad(ParseCountTokens("{}")).param, "messages");
}

TEST(AnthropicParseTest, BadRequests) {
  const std::string user = R"("messages": [{"role": "user", "content": "a"}])";
  const std::string some = R"("max_tokens": 3, "messages": )";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"max_tokens", user},
      {"max_tokens", R"("max_tokens": 0, )" + user},
      {"messages", R"("max_tokens": 3)"},
      {"messages", some + "[]"},
      {"messages", some + R"([1])"},
      {"messages", some + R"([{"role": "tool", "content": "a"}])"},
      {"messages", some + R"([{"role": "user"}])"},
      {"messages", some + R"([{"role": "user", "content": [{"type": "image"}]}])"},
      {"messages", some + R"([{"role": "user", "content": [{"type": "tool_use"}]}])"},
      {"messages", some + R"([{"role": "user", "content": [{"type": "tool_result"}]}])"},
      {"messages", some + R"([{"role": "user", "content": [{"type": "text"}]}])"},
      {"messages", some + R"([{"role": "assistant", "content":
                              [{"type": "tool_use", "id": "x", "name": "f", "input": "{}"}]}])"},
      {"system", R"("max_tokens": 3, "system": 1, )" + user},
      {"tools", R"("max_tokens": 3, "tools": [{"type": "web_search_1", "name": "w"}], )" + user},
      {"tools", R"("max_tokens": 3, "tools": [{"name": "w"}], )" + user},
      {"tool_choice", R"("max_tokens": 3, "tool_choice": "any", )" + user},
      {"thinking", R"("max_tokens": 3, "thinking": true, )" + user},
      {"output_config", R"("max_tokens": 3, "output_config": {"format": {"type": "x"}}, )" + user},
      {"mcp_servers", R"("max_tokens": 3, "mcp_servers": [{}], )" + user},
      {"n", R"("max_tokens": 3, "n": 2, )" + user},
      {"stop", R"("max_tokens": 3, "stop": "a", )" + user},
  };
  for (const auto& [param, fields] : cases) {
    SCOPED_TRACE(fields);
    const ApiError error = Bad(ParseAnthropic("{" + fields + "}", {}));
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.param, param);
    EXPECT_THAT(error.message, HasSubstr("'" + param));
    EXPECT_THAT(error.message, Not(HasSubstr("\n")));
  }
}

}  // namespace
}  // namespace specfabric::gateway
