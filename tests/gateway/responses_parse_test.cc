#include "gateway/responses_parse.h"

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

GenerationRequest Read(const std::string& body) { return Good(ParseResponses(body, {})); }
Json MessagesOf(const std::string& input) {
  return Json::parse(Read("{\"input\": " + input + "}").messages);
}

TEST(ResponsesParseTest, ATextIsAUsersMessage) {
  const auto request = Read(
      R"({"model": "m", "input": "Hello", "instructions": "Be brief.", "max_output_tokens": 7,
          "temperature": 0.5, "seed": 3, "stream": true, "store": true, "top_k": 4})");
  EXPECT_EQ(request.api, Api::kResponses);
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_TRUE(request.stream);
  EXPECT_EQ(request.sampling.seed, 3u);
  EXPECT_EQ(request.sampling.top_k, 4);
  EXPECT_TRUE(request.ignored_fields.empty());
  EXPECT_EQ(Json::parse(request.messages),
            Json::parse(R"([{"role": "system", "content": "Be brief."},
                            {"role": "user", "content": "Hello"}])"));
}

TEST(ResponsesParseTest, ItemsAreMessages) {
  EXPECT_EQ(MessagesOf(R"([
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"},
                                                        {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [],
         "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
         "content": [{"type": "output_text", "text": "c", "annotations": []}]},
        {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{\"a\": 1}"},
        {"type": "function_call", "call_id": "y", "name": "g", "arguments": "{}", "id": "fc_1"},
        {"type": "function_call_output", "call_id": "x", "output": "1"},
        {"type": "function_call_output", "call_id": "y",
         "output": [{"type": "input_text", "text": "2"}]},
        {"type": "function_call", "call_id": "z", "name": "f", "arguments": "{}"}])"),
            Json::parse(R"([
        {"role": "system", "content": "d"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "c", "reasoning_content": "hm", "tool_calls": [
          {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
          {"id": "y", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "x", "content": "1"},
        {"role": "tool", "tool_call_id": "y", "content": "2"},
        {"role": "assistant", "content": "", "tool_calls": [
          {"id": "z", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}])"));
}

constexpr char kTools[] = R"("input": "a", "tools": [
  {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true},
  {"type": "function", "name": "g", "description": "d", "parameters": null}])";

TEST(ResponsesParseTest, Tools) {
  const auto with = [](const std::string& more) {
    return Read("{" + std::string(kTools) + more + "}");
  };
  const auto plain = with("");
  EXPECT_EQ(plain.tool_use, ToolUse::kAllowed);
  ASSERT_EQ(plain.tools.size(), 2u);
  EXPECT_EQ(plain.tools[0].parameters, R"({"type":"object"})");
  EXPECT_THAT(plain.tools_json, HasSubstr(R"("function":{"name":"g","description":"d")"));
  const auto named = with(R"(, "tool_choice": {"type": "function", "name": "g"})");
  EXPECT_EQ(named.tool_use, ToolUse::kRequired);
  ASSERT_EQ(named.tools.size(), 1u);
  EXPECT_EQ(named.tools[0].name, "g");
  const auto allowed = with(
      R"(, "tool_choice": {"type": "allowed_tools", "mode": "required",
                           "tools": [{"type": "function", "name": "f"}]})");
  EXPECT_EQ(allowed.tool_use, ToolUse::kRequired);
  ASSERT_EQ(allowed.tools.size(), 1u);
  EXPECT_EQ(allowed.tools[0].name, "f");
  EXPECT_FALSE(with(R"(, "parallel_tool_calls": false)").parallel_tool_calls);
  EXPECT_EQ(Read(R"({"input": "a", "tools": []})").tool_use, ToolUse::kNone);
}

TEST(ResponsesParseTest, FormReasoningAndLogprobs) {
  const auto request = Read(
      R"({"input": "a", "text": {"format": {"type": "json_schema", "name": "n",
                                            "schema": {"type": "integer"}}, "verbosity": "low"},
          "reasoning": {"effort": "low", "summary": "auto"}, "top_logprobs": 2,
          "include": ["message.output_text.logprobs", "reasoning.encrypted_content"]})");
  EXPECT_EQ(request.grammar.source, R"({"type":"integer"})");
  EXPECT_EQ(Json::parse(request.template_variables)["reasoning_effort"], "low");
  EXPECT_EQ(request.logprobs, 2);
  EXPECT_EQ(Read(R"({"input": "a", "include": []})").logprobs, -1);
}

TEST(ResponsesParseTest, AnswersRepeatTheRequest) {
  const Json echo = Json::parse(
      Read(R"({"input": "a", "instructions": "i", "metadata": {"k": "v"}, "temperature": 0.25,
               "text": {"format": {"type": "json_object"}}, "store": true})")
          .echoed);
  EXPECT_EQ(echo["instructions"], "i");
  EXPECT_EQ(echo["metadata"], Json({{"k", "v"}}));
  EXPECT_EQ(echo["temperature"], 0.25);
  EXPECT_EQ(echo["top_p"], 1.0);
  EXPECT_EQ(echo["text"]["format"]["type"], "json_object");
  EXPECT_EQ(echo["tools"], Json::array());
  EXPECT_EQ(echo["tool_choice"], "auto");
  EXPECT_EQ(echo["store"], false);
  EXPECT_TRUE(echo["previous_response_id"].is_null());
}

TEST(ResponsesParseTest, BadRequests) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"input", R"("model": "m")"},
      {"input", R"("input": [])"},
      {"input", R"("input": 1)"},
      {"input", R"("input": ["a"])"},
      {"input", R"("input": [{"role": "user"}])"},
      {"input", R"("input": [{"role": "user", "content": [{"type": "input_image"}]}])"},
      {"input", R"("input": [{"type": "function_call", "name": "f"}])"},
      {"input", R"("input": [{"type": "function_call_output", "output": "a"}])"},
      {"input", R"("input": [{"type": "item_reference", "id": "a"}])"},
      {"input", R"("input": [{"type": "web_search_call"}])"},
      {"previous_response_id", R"("input": "a", "previous_response_id": "r")"},
      {"conversation", R"("input": "a", "conversation": "c")"},
      {"background", R"("input": "a", "background": true)"},
      {"prompt", R"("input": "a", "prompt": {"id": "p"})"},
      {"truncation", R"("input": "a", "truncation": "auto")"},
      {"messages", R"("input": "a", "messages": [])"},
      {"max_tokens", R"("input": "a", "max_tokens": 3)"},
      {"max_output_tokens", R"("input": "a", "max_output_tokens": 0)"},
      {"instructions", R"("input": "a", "instructions": 3)"},
      {"n", R"("input": "a", "n": 2)"},
      {"include", R"("input": "a", "include": "b")"},
      {"text", R"("input": "a", "text": "b")"},
      {"text", R"("input": "a", "text": {"format": {}})"},
      {"text", R"("input": "a", "text": {"format": {"type": "json_schema"}})"},
      {"reasoning", R"("input": "a", "reasoning": "b")"},
      {"tools", R"("input": "a", "tools": {})"},
      {"tools", R"("input": "a", "tools": [{"type": "web_search"}])"},
      {"tools", R"("input": "a", "tools": [1], "tool_choice": {"type": "allowed_tools"})"},
      {"tool_choice", R"("input": "a", "tool_choice": {"type": "file_search"})"},
      {"tool_choice",
       R"("input": "a", "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []})"},
      {"logit_bias", R"("input": "a", "logit_bias": 3)"},
  };
  for (const auto& [param, fields] : cases) {
    SCOPED_TRACE(fields);
    const ApiError error = Bad(ParseResponses("{" + fields + "}", {}));
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.param, param);
    EXPECT_THAT(error.message, HasSubstr("'" + param));
    EXPECT_THAT(error.message, Not(HasSubstr("\n")));
  }
  EXPECT_EQ(Read(R"({"input": "a", "no_such": 1})").ignored_fields,
            std::vector<std::string>{"no_such"});
}

}  // namespace
}  // namespace specfabric::gateway
