// One output, told by the chat, the Responses and the Messages API, whole and streamed.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/gateway_fixture.h"

namespace specfabric::gateway {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kTemplate[] =
    "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    "{% if tools %}<tool_call>{% endif %}{% if thinks %}<think></think>{% endif %}";
constexpr char kOutput[] =
    "<think>\nthat light\n</think>\n\nHe said:\n<tool_call>\n"
    "{\"name\": \"f\", \"arguments\": {\"a\": [1]}}\n</tool_call> END";

class GatewayChatsTest : public GatewayFixture {
 protected:
  GatewayChatsTest() {
    dir_.CopyTokenizer("byte_level_words");
    dir_.Write("chat_template.jinja", kTemplate);
    tokenizer_ = tokenizer::LoadFrom(dir_);
    FakeTargetOptions options = TargetOptions();
    options.corpus = tokenizer_->Encode(kOutput, false).value();
    length_ = std::to_string(options.corpus.size());
    AddTarget(options);
    StartGateway();
  }

  std::vector<Json> Stream(const std::string& path, const std::string& body) const {
    HttpClient client = Client();
    const auto head = client.Open(path, body);
    EXPECT_EQ(head.status, 200);
    std::vector<Json> events;
    for (const std::string& event : client.RestOfEvents()) {
      if (event != "[DONE]") events.push_back(Json::parse(event));
    }
    return events;
  }

  std::string Chat(const std::string& more) const {
    return R"({"messages": [{"role": "user", "content": "no"}], "seed": 0, "tools": [
               {"type": "function", "function": {"name": "f"}}], "stop": " END",
               "max_tokens": )" +
           length_ + more + "}";
  }

  tokenizer::TempDir dir_;
  std::string length_;
};

TEST_F(GatewayChatsTest, Chat) {
  const Json answer = Ok(Client().Post("/v1/chat/completions", Chat("")));
  const Json& message = answer["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "that light");
  EXPECT_EQ(message["content"], "He said:");
  EXPECT_EQ(message["tool_calls"][0]["function"],
            Json({{"name", "f"}, {"arguments", "{\"a\": [1]}"}}));
  EXPECT_EQ(message["tool_calls"][0]["id"].get<std::string>().size(), 9u);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(answer["choices"][0]["stop_reason"], " END");
  EXPECT_GT(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);

  std::string reasoning, content, arguments;
  for (const Json& event : Stream("/v1/chat/completions", Chat(R"(, "stream": true)"))) {
    const Json& delta = event["choices"][0]["delta"];
    if (delta.contains("reasoning_content")) {
      EXPECT_TRUE(content.empty());
      reasoning += delta["reasoning_content"].get<std::string>();
    }
    if (delta.contains("content")) content += delta["content"].get<std::string>();
    if (delta.contains("tool_calls")) {
      arguments += delta["tool_calls"][0]["function"]["arguments"].get<std::string>();
    }
  }
  EXPECT_EQ(reasoning, "that light");
  EXPECT_EQ(content, "He said:");
  EXPECT_EQ(arguments, "{\"a\": [1]}");
}

TEST_F(GatewayChatsTest, ReasoningMayBeLeftOutOrInTheText) {
  const Json without =
      Ok(Client().Post("/v1/chat/completions", Chat(R"(, "include_reasoning": false)")));
  EXPECT_FALSE(without["choices"][0]["message"].contains("reasoning_content"));
  EXPECT_EQ(without["choices"][0]["message"]["content"], "He said:");
  const Json within =
      Ok(Client().Post("/v1/chat/completions", Chat(R"(, "separate_reasoning": false)")));
  EXPECT_THAT(within["choices"][0]["message"]["content"].get<std::string>(),
              StartsWith("<think>\nthat light\n</think>"));
}

TEST_F(GatewayChatsTest, Responses) {
  const std::string asked = R"({"input": "no", "seed": 0, "stop": " END", "tools": [
      {"type": "function", "name": "f"}], "max_output_tokens": )" +
                            length_;
  const Json answer = Ok(Client().Post("/v1/responses", asked + "}"));
  EXPECT_THAT(answer["id"].get<std::string>(), StartsWith("resp_"));
  EXPECT_EQ(answer["status"], "completed");
  const Json& output = answer["output"];
  ASSERT_EQ(output.size(), 3u);
  EXPECT_EQ(output[0]["content"][0]["text"], "that light");
  EXPECT_EQ(output[1]["content"][0]["text"], "He said:");
  EXPECT_EQ(output[2]["arguments"], "{\"a\": [1]}");
  EXPECT_EQ(answer["tools"][0]["name"], "f");

  const auto events = Stream("/v1/responses", asked + R"(, "stream": true})");
  EXPECT_EQ(events.front()["type"], "response.created");
  EXPECT_EQ(events.back()["type"], "response.completed");
  Json whole = output, last = events.back()["response"]["output"];
  for (Json* items : {&whole, &last}) {
    for (Json& item : *items) {
      for (const char* of_this_answer : {"id", "call_id"}) item.erase(of_this_answer);
    }
  }
  EXPECT_EQ(last, whole);
  WaitFor(
      [&] {
        return Metric(
                   "specfabric_gateway_requests_total{code=\"200\",endpoint=\"/v1/responses\"}") ==
               2;
      },
      "both are counted");
}

TEST_F(GatewayChatsTest, Messages) {
  const std::string asked = R"({"messages": [{"role": "user", "content": "no"}], "seed": 0,
      "stop_sequences": ["He said"], "tools": [{"name": "f", "input_schema": {"type": "object"}}],
      "max_tokens": )" + length_;
  const Json answer = Ok(Client().Post("/v1/messages", asked + "}"));
  EXPECT_THAT(answer["id"].get<std::string>(), StartsWith("msg_"));
  EXPECT_EQ(answer["stop_reason"], "stop_sequence");
  EXPECT_EQ(answer["stop_sequence"], "He said");
  ASSERT_EQ(answer["content"].size(), 1u);
  EXPECT_EQ(answer["content"][0]["thinking"], "that light");

  const auto events = Stream("/v1/messages", asked + R"(, "stream": true})");
  EXPECT_EQ(events.front()["type"], "message_start");
  EXPECT_GT(events.front()["message"]["usage"]["input_tokens"], 0);
  EXPECT_EQ(events.back()["type"], "message_stop");
  EXPECT_EQ(events[events.size() - 2]["delta"]["stop_sequence"], "He said");

  const Json count = Ok(Client().Post("/v1/messages/count_tokens",
                                      R"({"messages": [{"role": "user", "content": "no"}]})"));
  EXPECT_EQ(count["input_tokens"], tokenizer_->Encode("no\n", false)->size());
}

TEST_F(GatewayChatsTest, ErrorsHaveTheFormOfTheirApi) {
  const auto refused = Client().Post("/v1/messages", R"({"messages": []})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(Json::parse(refused.body)["type"], "error");
  const auto other = Client().Post("/v1/messages", R"({"model": "x", "max_tokens": 1,
      "messages": [{"role": "user", "content": "a"}]})");
  EXPECT_EQ(other.status, 404);
  EXPECT_EQ(Json::parse(other.body)["error"]["type"], "not_found_error");
  EXPECT_THAT(ErrorOf(Client().Post("/v1/responses", "{}"), 400), HasSubstr("'input'"));
  EXPECT_EQ(Client().Get("/v1/messages").status, 405);
}

}  // namespace
}  // namespace specfabric::gateway
