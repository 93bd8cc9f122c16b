// Conversations, and the requests to tokenize and detokenize.

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gateway/openai_parse.h"
#include "gateway/parse_messages.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/parsed.h"

namespace specfabric::gateway {
namespace {

using ::testing::HasSubstr;

TEST(ParseChatTest, FlattensTextParts) {
  const auto request = Good(ParseChat(R"({"messages": [
      {"role": "system", "content": "s"},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ], "max_tokens": 3, "max_completion_tokens": 5, "logprobs": true, "top_logprobs": 2})"));
  EXPECT_TRUE(request.chat());
  EXPECT_EQ(request.messages,
            R"([{"role":"system","content":"s"},{"role":"user","content":"ab"}])");
  EXPECT_EQ(request.max_tokens, 5);
  EXPECT_EQ(request.logprobs, 2);
  EXPECT_FALSE(request.add_special_tokens);
  EXPECT_TRUE(request.add_generation_prompt);
}

TEST(ParseChatTest, WithoutMaxTokensTheContextIsTheLimit) {
  const auto request = Good(ParseChat(R"({"messages": [{"role": "user", "content": "a"}]})"));
  EXPECT_EQ(request.max_tokens, std::nullopt);
  EXPECT_EQ(request.logprobs, -1);
}

TEST(ParseChatTest, ChecksMessages) {
  for (const char* messages :
       {"null", "\"hello\"", "[]", R"([{"role": "user"}])", R"([{"content": "x"}])", "[3]",
        R"([{"role": 1, "content": "x"}])", R"([{"role": "user", "content": 5}])",
        R"([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])"}) {
    const auto error = Bad(ParseChat(std::string(R"({"messages": )") + messages + "}"));
    EXPECT_EQ(error.param, "messages") << messages;
    EXPECT_THAT(error.message, HasSubstr("messages")) << messages;
  }
}

TEST(ParseChatTest, MessagesWithoutContent) {
  const auto request = Good(ParseChat(R"({"messages": [
      {"role": "user", "content": "a"}, {"role": "assistant", "content": null},
      {"role": "assistant"}, {"role": "assistant", "content": null, "tool_calls": []},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]},
      {"role": "assistant", "tool_calls": [{"id": "1"}]},
      {"role": "tool", "content": null}]})"));
  EXPECT_EQ(request.messages,
            R"([{"role":"user","content":"a"},{"role":"assistant","content":""},)"
            R"({"role":"assistant","content":""},)"
            R"({"role":"assistant","content":"","tool_calls":[]},)"
            R"({"role":"assistant","content":null,"tool_calls":[{"id":"1"}]},)"
            R"({"role":"assistant","tool_calls":[{"id":"1"}]},{"role":"tool","content":""}])");
  EXPECT_EQ(Bad(ParseChat(R"({"messages": [{"role": "user", "content": null}]})")).message,
            "'messages[0]' must have a string or a list of text parts as 'content', got "
            "{\"role\":\"user\",\"content\":null}");
}

TEST(ParseChatTest, ListsAreLimited) {
  const auto list = [](const char* entry, size_t count) {
    std::string text = "[";
    for (size_t i = 0; i < count; ++i) text += std::string(i == 0 ? "" : ",") + entry;
    return text + "]";
  };
  const char* const message = R"({"role":"user","content":"a"})";
  EXPECT_FALSE(
      Good(ParseChat("{\"messages\": " + list(message, kMaxMessages) + "}")).messages.empty());
  EXPECT_EQ(Bad(ParseChat("{\"messages\": " + list(message, kMaxMessages + 1) + "}")).message,
            "'messages' has 16385 entries; at most 16384 are allowed");
  const std::string head = R"({"messages": [{"role": "user", "content": "a"}], )";
  for (const char* field : {"tools", "functions", "documents"}) {
    EXPECT_EQ(Bad(ParseChat(head + "\"" + field + "\": " + list("{}", 1025) + "}")).message,
              "'" + std::string(field) + "' has 1025 entries; at most 1024 are allowed");
  }
}

TEST(ParseChatTest, VariablesForTheTemplate) {
  const std::string head = R"({"messages": [{"role": "user", "content": "a"}], )";
  const auto variables = [&](const std::string& rest) {
    return Good(ParseChat(head + rest + "}")).template_variables;
  };
  EXPECT_EQ(variables(R"("n": 1)"), "");
  EXPECT_EQ(variables(R"("chat_template_kwargs": {})"), "");
  EXPECT_EQ(variables(R"("chat_template_kwargs": {"enable_thinking": false, "b": [1]})"),
            R"({"enable_thinking":false,"b":[1]})");
  EXPECT_EQ(variables(R"("documents": [{"title": "t", "text": "x"}])"),
            R"({"documents":[{"title":"t","text":"x"}]})");
  EXPECT_EQ(variables(R"("reasoning_effort": "none")"),
            R"({"reasoning_effort":"none","enable_thinking":false})");
  EXPECT_EQ(
      variables(R"("reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": false})"),
      R"({"enable_thinking":false,"reasoning_effort":"low"})");
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"chat_template_kwargs", R"([1])"},
      {"chat_template_kwargs", R"({"messages": []})"},
      {"chat_template_kwargs", R"({"tools": []})"},
      {"chat_template_kwargs", R"({"add_generation_prompt": false})"},
      {"chat_template_kwargs", R"({"chat_template": "x"})"},
      {"documents", R"({"a": 1})"},
      {"documents", R"(["a"])"},
      {"documents", R"([{}], "chat_template_kwargs": {"documents": []})"},
      {"reasoning_effort", R"("much")"},
      {"reasoning_effort", R"(0.5)"},
  };
  for (const auto& [field, value] : wrong) {
    EXPECT_EQ(Bad(ParseChat(head + "\"" + field + "\": " + value + "}")).param, field) << value;
  }
  const auto tokenize = ParseTokenize(head + R"("chat_template_kwargs": {"a": 1}})");
  EXPECT_EQ(std::get<TokenizeRequest>(tokenize).template_variables, R"({"a":1})");
}

TEST(ParseChatTest, SpecialTokensAroundTheTemplateIfRequested) {
  EXPECT_TRUE(Good(ParseChat(R"({"messages": [{"role": "user", "content": "a"}],
                                 "add_special_tokens": true})"))
                  .add_special_tokens);
}

TEST(ParseChatTest, BestOfIsRefused) {
  const auto error =
      Bad(ParseChat(R"({"messages": [{"role": "user", "content": "a"}], "best_of": 2})"));
  EXPECT_EQ(error.param, "best_of");
}

TEST(ParseChatTest, AlternativesNeedLogprobs) {
  const auto error =
      Bad(ParseChat(R"({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2})"));
  EXPECT_EQ(error.param, "top_logprobs");
}

TEST(ParseTokenizeTest, PromptOrMessages) {
  const auto prompt = ParseTokenize(R"({"prompt": "", "add_special_tokens": false})");
  ASSERT_TRUE(std::holds_alternative<TokenizeRequest>(prompt));
  EXPECT_FALSE(std::get<TokenizeRequest>(prompt).add_special_tokens);
  const auto chat = ParseTokenize(R"({"messages": [{"role": "user", "content": "a"}]})");
  ASSERT_TRUE(std::holds_alternative<TokenizeRequest>(chat));
  EXPECT_EQ(std::get<TokenizeRequest>(chat).messages, R"([{"role":"user","content":"a"}])");
  EXPECT_EQ(Bad(ParseTokenize("{}")).param, "prompt");
}

TEST(ParseDetokenizeTest, NeedsIds) {
  const auto good = ParseDetokenize(R"({"tokens": [1, 2]})");
  ASSERT_TRUE(std::holds_alternative<DetokenizeRequest>(good));
  EXPECT_EQ(std::get<DetokenizeRequest>(good).tokens.size(), 2u);
  EXPECT_EQ(Bad(ParseDetokenize(R"({"tokens": "x"})")).param, "tokens");
}

}  // namespace
}  // namespace specfabric::gateway
