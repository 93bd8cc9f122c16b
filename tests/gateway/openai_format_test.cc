#include "gateway/openai_format.h"

#include <limits>
#include <string>
#include <vector>

#include "gateway/json_fields.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::gateway {
namespace {

using ::testing::HasSubstr;

Json Read(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << text;
  return json;
}

AnswerHead Head(bool chat) {
  return {.api = chat ? Api::kChat : Api::kCompletions,
          .id = "id-1",
          .created = 123,
          .model = "m",
          .system_fingerprint = "fp_1",
          .exactness = Exactness::kToken};
}

TokenEntry Entry(base::TokenId id, std::string bytes, float logprob, int64_t offset) {
  return {.token = {id, std::move(bytes), logprob}, .offset = offset};
}

TEST(TokenNameTest, BytesThatAreNotCharacters) {
  EXPECT_EQ(TokenName(1, " the"), " the");
  EXPECT_EQ(TokenName(1, "\xE6\xBC"), "bytes:\\xe6\\xbc");
  EXPECT_EQ(TokenName(17, ""), "token_id:17");
}

TEST(FormatTest, Completion) {
  const ChoicePart part{.index = 1, .piece = {.text = "x"}, .finish_reason = "stop"};
  const Json json = Read(Answer(Head(false), {part}, {3, 2, {4, 5, 6, {3, 2, 1}}, 1}));
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["id"], "id-1");
  EXPECT_EQ(json["created"], 123);
  EXPECT_EQ(json["model"], "m");
  EXPECT_EQ(json["exactness"], "token");
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["index"], 1);
  EXPECT_EQ(choice["text"], "x");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_FALSE(choice.contains("token_ids"));
  EXPECT_EQ(json["usage"]["total_tokens"], 5);
  EXPECT_EQ(json["usage"]["prompt_tokens_details"], Json({{"cached_tokens", 1}}));
  EXPECT_EQ(json["usage"]["speculation"], Json({{"rounds", 4},
                                                {"drafted", 5},
                                                {"accepted", 6},
                                                {"verification", "coupled"},
                                                {"accepted_per_position", {3, 2, 1}}}));
}

TEST(FormatTest, ExactnessIsNamed) {
  AnswerHead head = Head(false);
  head.exactness = Exactness::kDistribution;
  EXPECT_EQ(Read(Answer(head, {}, {}))["exactness"], "distribution");
  head.exactness = Exactness::kNone;
  const Usage usage = {1, 1, {.verification = schemas::VerificationMethod::kTypical}};
  const Json json = Read(UsageChunk(head, usage));
  EXPECT_EQ(json["exactness"], "none");
  EXPECT_EQ(json["usage"]["speculation"]["verification"], "typical");
}

TEST(FormatTest, CompletionLogprobs) {
  ChoicePart part{.piece = {.text = "ab"}, .with_logprobs = true};
  part.piece.entries = {Entry(1, "a", 0, 0), Entry(2, "b", -0.1f, 1)};
  part.piece.entries[0].scored = false;
  part.piece.entries[1].top = {{3, "c", -0.05f}, {4, "c", -0.07f}};
  const Json logprobs = Read(Answer(Head(false), {part}, {}))["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json({"a", "b"}));
  EXPECT_EQ(logprobs["text_offset"], Json({0, 1}));
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_EQ(logprobs["token_logprobs"][1].get<float>(), -0.1f);
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  const Json& top = logprobs["top_logprobs"][1];
  EXPECT_EQ(top.size(), 3u);  // two ids of one name, and the token itself
  EXPECT_EQ(top["c"].get<float>(), -0.05f);
  EXPECT_EQ(top["token_id:4"].get<float>(), -0.07f);
  EXPECT_EQ(top["b"].get<float>(), -0.1f);
}

TEST(FormatTest, FloatsKeepTheirBits) {
  ChoicePart part{.with_logprobs = true};
  for (float value : {-1.0f / 3, -12.345678f, -1e-7f, -0.0f}) {
    part.piece.entries = {Entry(1, "a", value, 0)};
    const Json json = Read(Answer(Head(false), {part}, {}));
    EXPECT_EQ(json["choices"][0]["logprobs"]["token_logprobs"][0].get<float>(), value);
  }
  part.piece.entries = {Entry(1, "a", -std::numeric_limits<float>::infinity(), 0)};
  EXPECT_EQ(Read(Answer(Head(false), {part}, {}))["choices"][0]["logprobs"]["token_logprobs"][0],
            -9999.0);
}

TEST(FormatTest, ChatWithLogprobs) {
  ChoicePart part{
      .piece = {.text = "\xE6\xBC\xA2"}, .with_logprobs = true, .finish_reason = "length"};
  part.piece.entries = {Entry(1, "\xE6", -1, 0), Entry(2, "\xBC\xA2", -2, 0)};
  part.piece.entries[0].top = {{1, "\xE6", -1}};
  const Json json = Read(Answer(Head(true), {part}, {1, 2, {}}));
  EXPECT_EQ(json["object"], "chat.completion");
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], "\xE6\xBC\xA2");
  const Json& content = choice["logprobs"]["content"];
  EXPECT_EQ(content[0]["token"], "bytes:\\xe6");
  EXPECT_EQ(content[0]["bytes"], Json({0xE6}));
  EXPECT_EQ(content[0]["top_logprobs"][0]["logprob"], -1);
  EXPECT_EQ(content[1]["bytes"], Json({0xBC, 0xA2}));
  EXPECT_TRUE(content[1]["top_logprobs"].is_array());
}

TEST(FormatTest, PromptLogprobs) {
  ChoicePart part;
  part.prompt_logprobs = {Entry(1, "", 0, 0), Entry(2, "b", -1.5f, 0), Entry(3, "c", -0.5f, 0)};
  (*part.prompt_logprobs)[0].scored = false;
  (*part.prompt_logprobs)[1].top = {{4, "d", -0.25f}};
  (*part.prompt_logprobs)[2].top = {{3, "c", -0.5f}};
  const Json list = Read(Answer(Head(false), {part}, {}))["choices"][0]["prompt_logprobs"];
  ASSERT_EQ(list.size(), 3u);
  EXPECT_TRUE(list[0].is_null());
  EXPECT_EQ(list[1]["4"], Json({{"logprob", -0.25}, {"rank", 1}, {"decoded_token", "d"}}));
  EXPECT_EQ(list[1]["2"], Json({{"logprob", -1.5}, {"rank", nullptr}, {"decoded_token", "b"}}));
  EXPECT_EQ(list[2].size(), 1u);
  EXPECT_EQ(list[2]["3"]["rank"], 1);
}

TEST(FormatTest, ReasoningAndStops) {
  ChoicePart part{.piece = {.reasoning = "r"}};
  part.finish_reason = "stop";
  part.stop = "END";
  const Json choice = Read(Answer(Head(true), {part}, {}))["choices"][0];
  EXPECT_EQ(choice["message"]["reasoning_content"], "r");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["stop_reason"], "END");
  const Json chunk = Read(Chunk(Head(true), part, EventUsage::kAbsent))["choices"][0];
  EXPECT_EQ(chunk["delta"], Json({{"reasoning_content", "r"}}));
  part.stop.clear();
  EXPECT_TRUE(Read(Answer(Head(true), {part}, {}))["choices"][0]["stop_reason"].is_null());
}

TEST(FormatTest, CallIdsAreNineLettersAndDigits) {
  const std::string id = CallId(Head(true), 0, 1);
  EXPECT_EQ(id.size(), 9u);
  EXPECT_EQ(id, CallId(Head(true), 0, 1));
  EXPECT_NE(id, CallId(Head(true), 1, 1));
  EXPECT_EQ(id.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz"), std::string::npos);
}

TEST(FormatTest, TokenIdsIfRequested) {
  ChoicePart part;
  part.with_token_ids = true;
  part.piece.ids = {4, 5};
  part.prompt_token_ids = {1};
  const Json choice = Read(Answer(Head(false), {part}, {}))["choices"][0];
  EXPECT_EQ(choice["token_ids"], Json({4, 5}));
  EXPECT_EQ(choice["prompt_token_ids"], Json({1}));
}

TEST(FormatTest, Chunks) {
  ChoicePart part{.piece = {.text = "x"}};
  Json json = Read(Chunk(Head(false), part, EventUsage::kAbsent));
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["choices"][0]["text"], "x");
  EXPECT_TRUE(json["choices"][0]["finish_reason"].is_null());
  EXPECT_FALSE(json.contains("usage"));
  EXPECT_FALSE(json.contains("exactness"));

  json = Read(Chunk(Head(true), part, EventUsage::kNull));
  EXPECT_EQ(json["object"], "chat.completion.chunk");
  EXPECT_EQ(json["choices"][0]["delta"], Json({{"content", "x"}}));
  EXPECT_TRUE(json["usage"].is_null());

  part = {.finish_reason = "stop"};
  json = Read(Chunk(Head(true), part, EventUsage::kNull));
  EXPECT_EQ(json["choices"][0]["delta"], Json::object());
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["exactness"], "token");

  part = {.prompt_tokens = 9, .completion_tokens = 3};
  json = Read(Chunk(Head(true), part, EventUsage::kSoFar));
  EXPECT_EQ(json["usage"],
            Json({{"prompt_tokens", 9}, {"completion_tokens", 3}, {"total_tokens", 12}}));

  json = Read(UsageChunk(Head(true), {1, 2, {}}));
  EXPECT_EQ(json["choices"], Json::array());
  EXPECT_EQ(json["usage"]["completion_tokens"], 2);
}

TEST(FormatTest, AChatBeginsWithTheRoleAlone) {
  const Json json = Read(RoleChunk(Head(true), 2, 9, EventUsage::kNull));
  EXPECT_EQ(json["object"], "chat.completion.chunk");
  EXPECT_EQ(json["choices"], Json::array({{{"index", 2},
                                           {"delta", {{"role", "assistant"}, {"content", ""}}},
                                           {"logprobs", nullptr},
                                           {"finish_reason", nullptr}}}));
  EXPECT_TRUE(json["usage"].is_null());
  EXPECT_FALSE(json.contains("exactness"));
  EXPECT_FALSE(Read(RoleChunk(Head(true), 0, 9, EventUsage::kAbsent)).contains("usage"));
  EXPECT_EQ(Read(RoleChunk(Head(true), 0, 9, EventUsage::kSoFar))["usage"]["total_tokens"], 9);
}

TEST(FormatTest, TokensNamedByIds) {
  ChoicePart part{.with_logprobs = true, .tokens_as_ids = true};
  part.piece.entries = {Entry(7, "a", -1, 0)};
  part.piece.entries[0].top = {{7, "a", -1}, {8, "b", -2}};
  const Json completion = Read(Answer(Head(false), {part}, {}))["choices"][0]["logprobs"];
  EXPECT_EQ(completion["tokens"], Json({"token_id:7"}));
  EXPECT_EQ(completion["top_logprobs"][0], Json({{"token_id:7", -1.0}, {"token_id:8", -2.0}}));
  const Json chat = Read(Answer(Head(true), {part}, {}))["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(chat["token"], "token_id:7");
  EXPECT_EQ(chat["bytes"], Json({97}));  // still the token's own
  EXPECT_EQ(chat["top_logprobs"][1]["token"], "token_id:8");
}

TEST(FormatTest, Errors) {
  Json json = Read(ErrorBody(BadRequest("n", "two\nlines")));
  EXPECT_EQ(json["error"]["message"], "two lines");
  EXPECT_EQ(json["error"]["param"], "n");
  EXPECT_TRUE(json["error"]["code"].is_null());
  EXPECT_EQ(json["error"]["type"], "invalid_request_error");
  json = Read(ErrorBody(Draining()));
  EXPECT_TRUE(json["error"]["param"].is_null());
  EXPECT_EQ(json["error"]["code"], "draining");
  EXPECT_EQ(Read(ErrorBody(BadRequest("", "\xFF")))["error"].size(), 4u);
}

TEST(FormatTest, SmallBodies) {
  const Json models = Read(ModelsBody({{"m", 7, "/srv/m", 2048}, {"alias", 7, "/srv/m", 2048}}));
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "m");
  EXPECT_EQ(models["data"][0]["max_model_len"], 2048);
  EXPECT_EQ(models["data"][1]["id"], "alias");
  EXPECT_EQ(models["data"][1]["root"], "/srv/m");
  EXPECT_EQ(Read(ModelBody({"m", 7, "", 2048}))["object"], "model");
  EXPECT_EQ(Read(TokenizeBody({1, 2}, 9)),
            Json({{"count", 2}, {"max_model_len", 9}, {"tokens", {1, 2}}}));
  EXPECT_EQ(Read(DetokenizeBody("a\"b")), Json({{"prompt", "a\"b"}}));
  EXPECT_EQ(Read(VersionBody("1")), Json({{"version", "1"}}));
  EXPECT_EQ(Event("{}"), "data: {}\n\n");
}

}  // namespace
}  // namespace specfabric::gateway
