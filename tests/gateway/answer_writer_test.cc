#include "gateway/answer_writer.h"

#include <string>
#include <utility>
#include <vector>

#include "gateway/json_parse.h"
#include "gateway/openai_parse.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::gateway {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

AnswerHead Head(Api api) {
  return {.api = api,
          .id = api == Api::kResponses ? "resp_12" : "msg_12",
          .created = 123,
          .model = "m",
          .system_fingerprint = "fp_1",
          .exactness = Exactness::kToken};
}

std::unique_ptr<AnswerWriter> WriterOf(Api api) {
  GenerationRequest request;
  request.api = api;
  request.echoed = R"({"temperature":1.0,"store":false})";
  return MakeAnswerWriter(request);
}

// An answer of every kind of block, in pieces.
std::vector<ChoicePart> Parts() {
  std::vector<ChoicePart> parts(5);
  parts[0].piece = {.reasoning = "h"};
  parts[1].piece = {.reasoning = "m", .text = "I "};
  parts[2].piece = {.text = "call"};
  parts[3].piece.calls = {{.index = 0, .name = "f", .arguments = "{\"a\""}};
  parts[4].piece.calls = {{.index = 0, .arguments = ": 1}"},
                          {.index = 1, .name = "g", .arguments = "{}"}};
  parts[4].finish_reason = "tool_calls";
  return parts;
}

ChoicePart Whole(const std::string& finish_reason = "tool_calls") {
  ChoicePart whole;
  for (ChoicePart& part : Parts()) whole.piece.Append(std::move(part.piece));
  whole.finish_reason = finish_reason;
  return whole;
}

const Usage kUsage = {.prompt_tokens = 9,
                      .completion_tokens = 5,
                      .speculation = {},
                      .cached_tokens = 4,
                      .reasoning_tokens = 2};

// The data of events, whose names must be their types.
std::vector<Json> Events(const std::string& stream) {
  std::vector<Json> events;
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find("\n\n", at);
    const std::string event = stream.substr(at, end - at);
    const size_t data = event.find("\ndata: ");
    EXPECT_NE(data, std::string::npos) << event;
    events.push_back(Json::parse(event.substr(data + 7)));
    EXPECT_EQ("event: " + events.back()["type"].get<std::string>(), event.substr(0, data));
    at = end + 2;
  }
  return events;
}

std::vector<Json> Streamed(Api api, std::vector<ChoicePart> parts) {
  const auto writer = WriterOf(api);
  const AnswerHead head = Head(api);
  std::string stream = writer->Begin(head, 1, {.prompt_tokens = 9, .completion_tokens = 0});
  for (ChoicePart& part : parts) stream += writer->News(head, std::move(part));
  return Events(stream + writer->End(head, kUsage));
}

std::vector<std::string> TypesOf(const std::vector<Json>& events) {
  std::vector<std::string> types;
  for (const Json& event : events) types.push_back(event["type"]);
  return types;
}

TEST(ResponsesWriterTest, WholeAnswers) {
  const Json json =
      Json::parse(WriterOf(Api::kResponses)->Whole(Head(Api::kResponses), {Whole()}, kUsage));
  EXPECT_EQ(json["object"], "response");
  EXPECT_EQ(json["status"], "completed");
  EXPECT_EQ(json["temperature"], 1.0);
  EXPECT_EQ(json["usage"], Json::parse(R"({"input_tokens": 9,
                            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
                            "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 2},
                            "total_tokens": 14})"));
  const Json& output = json["output"];
  ASSERT_EQ(output.size(), 4u);
  EXPECT_EQ(output[0]["type"], "reasoning");
  EXPECT_EQ(output[0]["content"][0]["text"], "hm");
  EXPECT_EQ(output[1]["id"], "msg_12_1");
  EXPECT_EQ(output[1]["content"][0]["text"], "I call");
  EXPECT_EQ(output[2]["name"], "f");
  EXPECT_EQ(output[2]["arguments"], "{\"a\": 1}");
  EXPECT_EQ(output[3]["name"], "g");
  EXPECT_NE(output[2]["call_id"], output[3]["call_id"]);
}

TEST(ResponsesWriterTest, CutAnswersAreIncomplete) {
  const Json json = Json::parse(
      WriterOf(Api::kResponses)->Whole(Head(Api::kResponses), {Whole("length")}, kUsage));
  EXPECT_EQ(json["status"], "incomplete");
  EXPECT_EQ(json["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(json["output"][2]["status"], "completed");
  EXPECT_EQ(json["output"][3]["status"], "incomplete");
  auto parts = Parts();
  parts.back().finish_reason = "length";
  EXPECT_EQ(Streamed(Api::kResponses, std::move(parts)).back()["type"], "response.incomplete");
}

TEST(ResponsesWriterTest, Streams) {
  const std::vector<Json> events = Streamed(Api::kResponses, Parts());
  EXPECT_THAT(
      TypesOf(events),
      ElementsAre(
          "response.created", "response.in_progress", "response.output_item.added",
          "response.content_part.added", "response.reasoning_text.delta",
          "response.reasoning_text.delta", "response.reasoning_text.done",
          "response.content_part.done", "response.output_item.done", "response.output_item.added",
          "response.content_part.added", "response.output_text.delta", "response.output_text.delta",
          "response.output_text.done", "response.content_part.done", "response.output_item.done",
          "response.output_item.added", "response.function_call_arguments.delta",
          "response.function_call_arguments.delta", "response.function_call_arguments.done",
          "response.output_item.done", "response.output_item.added",
          "response.function_call_arguments.delta", "response.function_call_arguments.done",
          "response.output_item.done", "response.completed"));
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i]["sequence_number"], i);
  EXPECT_EQ(events[0]["response"]["status"], "in_progress");
  EXPECT_EQ(events[0]["response"]["output"], Json::array());
  const Json& added = events[16]["item"];
  EXPECT_EQ(added["arguments"], "");
  EXPECT_EQ(added["name"], "f");
  EXPECT_EQ(events[19]["arguments"], "{\"a\": 1}");
  // The last event has what a whole answer has.
  const Json whole =
      Json::parse(WriterOf(Api::kResponses)->Whole(Head(Api::kResponses), {Whole()}, kUsage));
  EXPECT_EQ(events.back()["response"], whole);
  std::vector<Json> done;
  for (const Json& event : events) {
    if (event["type"] == "response.output_item.done") done.push_back(event["item"]);
  }
  EXPECT_EQ(Json(done), whole["output"]);
}

TEST(ResponsesWriterTest, LogprobsGoWithTheText) {
  ChoicePart held, told;
  held.piece.entries = {{.token = {1, "a", -1.0f}}};
  told.piece = {.text = "ab"};
  told.piece.entries = {{.token = {2, "b", -2.0f}, .top = {{3, "c", -0.5f}}}};
  told.finish_reason = "stop";
  const auto events = Streamed(Api::kResponses, {held, told});
  const Json& delta = events[4];
  ASSERT_EQ(delta["type"], "response.output_text.delta");
  ASSERT_EQ(delta["logprobs"].size(), 2u);
  EXPECT_EQ(delta["logprobs"][1]["top_logprobs"][0]["token"], "c");
  EXPECT_EQ(events.back()["response"]["output"][0]["content"][0]["logprobs"], delta["logprobs"]);
}

TEST(ResponsesWriterTest, Failures) {
  const auto writer = WriterOf(Api::kResponses);
  writer->Begin(Head(Api::kResponses), 1, {});
  const auto events = Events(writer->Failed(Head(Api::kResponses), ServerError("a\nb")));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["type"], "response.failed");
  EXPECT_EQ(events[0]["response"]["status"], "failed");
  EXPECT_EQ(events[0]["response"]["error"], Json({{"code", "server_error"}, {"message", "a b"}}));
  const auto unbegun = WriterOf(Api::kResponses);
  EXPECT_THAT(TypesOf(Events(unbegun->Failed(Head(Api::kResponses), ServerError("a")))),
              ElementsAre("response.created", "response.in_progress", "response.failed"));
}

TEST(AnthropicWriterTest, WholeAnswers) {
  const Json json =
      Json::parse(WriterOf(Api::kAnthropic)->Whole(Head(Api::kAnthropic), {Whole()}, kUsage));
  EXPECT_EQ(json["type"], "message");
  EXPECT_EQ(json["stop_reason"], "tool_use");
  EXPECT_EQ(json["usage"]["input_tokens"], 5);
  EXPECT_EQ(json["usage"]["cache_read_input_tokens"], 4);
  EXPECT_EQ(json["usage"]["output_tokens"], 5);
  const Json& content = json["content"];
  ASSERT_EQ(content.size(), 4u);
  EXPECT_EQ(content[0]["thinking"], "hm");
  EXPECT_EQ(content[1]["text"], "I call");
  EXPECT_EQ(content[2]["input"], Json({{"a", 1}}));
  EXPECT_THAT(content[3]["id"].get<std::string>(), HasSubstr("toolu_"));
  ChoicePart stopped = {.piece = {.text = "a"}, .finish_reason = "stop"};
  stopped.stop = "END";
  const Json other =
      Json::parse(WriterOf(Api::kAnthropic)->Whole(Head(Api::kAnthropic), {stopped}, kUsage));
  EXPECT_EQ(other["stop_reason"], "stop_sequence");
  EXPECT_EQ(other["stop_sequence"], "END");
  const Json cut = Json::parse(
      WriterOf(Api::kAnthropic)->Whole(Head(Api::kAnthropic), {Whole("length")}, kUsage));
  EXPECT_EQ(cut["stop_reason"], "max_tokens");
}

TEST(AnthropicWriterTest, Streams) {
  const std::vector<Json> events = Streamed(Api::kAnthropic, Parts());
  EXPECT_THAT(TypesOf(events),
              ElementsAre("message_start", "content_block_start", "content_block_delta",
                          "content_block_delta", "content_block_stop", "content_block_start",
                          "content_block_delta", "content_block_delta", "content_block_stop",
                          "content_block_start", "content_block_delta", "content_block_delta",
                          "content_block_stop", "content_block_start", "content_block_delta",
                          "content_block_stop", "message_delta", "message_stop"));
  EXPECT_EQ(events[0]["message"]["content"], Json::array());
  EXPECT_EQ(events[0]["message"]["usage"]["input_tokens"], 9);
  std::vector<std::string> texts(4);
  for (const Json& event : events) {
    if (event["type"] != "content_block_delta") continue;
    const Json& delta = event["delta"];
    std::string& text = texts[event["index"].get<size_t>()];
    for (const char* name : {"thinking", "text", "partial_json"}) {
      if (delta.contains(name)) text += delta[name].get<std::string>();
    }
  }
  EXPECT_THAT(texts, ElementsAre("hm", "I call", "{\"a\": 1}", "{}"));
  EXPECT_EQ(events[9]["content_block"]["input"], Json::object());
  EXPECT_EQ(events[16]["delta"]["stop_reason"], "tool_use");
  EXPECT_EQ(events[16]["usage"]["output_tokens"], 5);
}

TEST(AnthropicWriterTest, Errors) {
  const std::vector<std::pair<ApiError, std::string>> cases = {
      {BadRequest("a", "m"), "invalid_request_error"},
      {Overloaded("m", 1), "rate_limit_error"},
      {NoTarget("m"), "overloaded_error"},
      {TimedOut("m"), "timeout_error"},
      {ServerError("m"), "api_error"},
      {{.status = 404, .message = "m"}, "not_found_error"}};
  for (const auto& [error, type] : cases) {
    EXPECT_EQ(Json::parse(ErrorBody(Api::kAnthropic, error)),
              Json({{"type", "error"}, {"error", {{"type", type}, {"message", "m"}}}}));
  }
  const auto events =
      Events(WriterOf(Api::kAnthropic)->Failed(Head(Api::kAnthropic), ServerError("m")));
  EXPECT_EQ(events[0]["error"]["type"], "api_error");
  EXPECT_TRUE(Json::parse(ErrorBody(Api::kResponses, ServerError("m")))["error"].contains("code"));
}

}  // namespace
}  // namespace specfabric::gateway
