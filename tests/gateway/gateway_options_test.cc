// Options of requests through the whole gateway: their effect on answers and on submits.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/gateway_fixture.h"

namespace specfabric::gateway {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kHeader = "specfabric-ignored-fields";

class GatewayOptionsTest : public GatewayFixture {
 protected:
  GatewayOptionsTest() {
    AddTarget();
    StartGateway();
  }

  // The events of a streamed answer without the last one.
  std::vector<Json> Events(const std::string& path, const std::string& body) const {
    HttpClient client = Client();
    EXPECT_EQ(client.Open(path, body).status, 200);
    std::vector<Json> events;
    for (const std::string& event : client.RestOfEvents()) {
      if (event != "[DONE]") events.push_back(Json::parse(event));
    }
    return events;
  }
};

TEST_F(GatewayOptionsTest, UnknownFieldsAreNamedInAHeader) {
  HttpClient client = Client();
  const std::string completion = R"({"prompt": "no", "max_tokens": 2, "novel": 1, "other": {})";
  EXPECT_EQ(client.Post("/v1/completions", completion + "}").headers.at(kHeader), "novel, other");
  const std::string chat =
      R"({"messages": [{"role": "user", "content": "no"}], "max_tokens": 2, "novel": 1, "user": 3)";
  EXPECT_EQ(client.Post("/v1/chat/completions", chat + "}").headers.at(kHeader), "novel");
  EXPECT_EQ(client.Post("/tokenize", R"({"prompt": "a", "novel": 1})").headers.at(kHeader),
            "novel");
  EXPECT_EQ(client.Post("/detokenize", R"({"tokens": [1], "novel": 1})").headers.at(kHeader),
            "novel");
  EXPECT_EQ(client.Post("/v1/completions", R"({"prompt": "no", "max_tokens": 2, "user": "u"})")
                .headers.count(kHeader),
            0u);
  HttpClient streaming = Client();
  EXPECT_EQ(
      streaming.Open("/v1/completions", completion + R"(, "stream": true})").headers.at(kHeader),
      "novel, other");
  EXPECT_GT(streaming.RestOfEvents().size(), 1u);
  HttpClient hostile = Client();
  const auto response = hostile.Post(
      "/v1/completions", R"({"prompt": "no", "max_tokens": 2, "a\r\nSet-Cookie: x": 1})");
  EXPECT_EQ(response.headers.at(kHeader), "a??Set-Cookie:?x");
  EXPECT_EQ(response.headers.count("set-cookie"), 0u);
}

TEST_F(GatewayOptionsTest, EachChoiceOfAStreamedChatBeginsWithItsRoleAlone) {
  const std::string body = R"({"messages": [{"role": "user", "content": "no"}], "seed": 1, "n": 3,
      "max_completion_tokens": 6, "logprobs": true, "top_logprobs": 1)";
  const Json whole = Ok(Client().Post("/v1/chat/completions", body + "}"));
  std::vector<int> seen(3, 0);
  std::vector<std::string> texts(3);
  std::vector<size_t> scored(3, 0);
  for (const Json& event : Events("/v1/chat/completions", body + R"(, "stream": true})")) {
    const Json& choice = event["choices"][0];
    const auto index = choice["index"].get<size_t>();
    const Json& delta = choice["delta"];
    if (seen[index]++ == 0) {
      EXPECT_EQ(delta, Json({{"role", "assistant"}, {"content", ""}}));
      EXPECT_TRUE(choice["logprobs"].is_null());
      EXPECT_TRUE(choice["finish_reason"].is_null());
      continue;
    }
    EXPECT_FALSE(delta.contains("role"));
    texts[index] += delta.value("content", "");
    scored[index] += choice["logprobs"]["content"].size();
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(texts[i], whole["choices"][i]["message"]["content"]);
    EXPECT_EQ(scored[i], 6u);
  }
}

TEST_F(GatewayOptionsTest, AChatWithoutTokensBeginsWithTheRole) {
  const auto events = Events("/v1/chat/completions",
                             R"({"messages": [{"role": "user", "content": "no"}], "max_tokens": 0,
                                 "stream": true})");
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(events[1]["choices"][0]["finish_reason"], "length");
}

using ModelNamesTest = GatewayFixture;

TEST_F(ModelNamesTest, AModelMayHaveSeveralNames) {
  AddTarget();
  GatewayOptions options;
  options.model_name = "m";
  options.model_aliases = {"org/model", "latest"};
  StartGateway(std::move(options), 1);
  for (const char* name : {"m", "org/model", "latest"}) {
    const Json answer =
        Complete(std::string(R"({"prompt": "no", "max_tokens": 2, "model": ")") + name + "\"}");
    EXPECT_EQ(answer["model"], "m") << name;
    const Json model = Ok(Client().Get(std::string("/v1/models/") + name));
    EXPECT_EQ(model["id"], name);
    EXPECT_EQ(model["max_model_len"], 500);
  }
  const Json models = Ok(Client().Get("/v1/models"));
  ASSERT_EQ(models["data"].size(), 3u);
  EXPECT_EQ(models["data"][0]["id"], "m");
  EXPECT_EQ(models["data"][1]["id"], "org/model");
  EXPECT_EQ(models["data"][2]["id"], "latest");
  ErrorOf(Client().Post("/v1/completions", R"({"prompt": "no", "model": "other"})"), 404);
  ErrorOf(Client().Get("/v1/models/org"), 404);
}

TEST_F(GatewayOptionsTest, TheTextCanIncludeTheStop) {
  const std::string whole = TextOf(2, 60);
  const std::string stop = whole.substr(12, 5);
  const std::string body = R"({"prompt": "no", "max_tokens": 100, "seed": 2, "stop": ["1","2","3",)"
                           R"("4", "5", ")" +
                           stop + R"("], "include_stop_str_in_output": true)";
  const Json answer = Complete(body + "}");
  EXPECT_EQ(answer["choices"][0]["text"], whole.substr(0, whole.find(stop) + stop.size()));
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  std::string text;
  for (const Json& event : Events("/v1/completions", body + R"(, "stream": true})")) {
    text += event["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, answer["choices"][0]["text"]);
}

TEST_F(GatewayOptionsTest, TokensNamedByIds) {
  const Json answer = Complete(
      R"({"prompt": "no", "max_tokens": 3, "seed": 4, "logprobs": 1,
          "return_tokens_as_token_ids": true, "return_token_ids": true})");
  const Json& choice = answer["choices"][0];
  ASSERT_EQ(choice["token_ids"].size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(choice["logprobs"]["tokens"][i],
              "token_id:" + std::to_string(choice["token_ids"][i].get<int>()));
    for (const auto& [name, logprob] : choice["logprobs"]["top_logprobs"][i].items()) {
      EXPECT_THAT(name, StartsWith("token_id:"));
    }
  }
}

TEST_F(GatewayOptionsTest, ATruncatedPromptIsCountedAndEchoed) {
  const Json answer = Complete(R"({"prompt": "that he said", "max_tokens": 2, "echo": true,
      "truncate_prompt_tokens": 2, "return_token_ids": true, "seed": 1})");
  const auto ids = tokenizer_->Encode("that he said", true).value();
  const std::vector<base::TokenId> kept(ids.end() - 2, ids.end());
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(answer["choices"][0]["prompt_token_ids"], Json(kept));
  EXPECT_THAT(answer["choices"][0]["text"].get<std::string>(),
              StartsWith(tokenizer_->Decode(kept, true).value()));
  EXPECT_EQ(targets_[0]->submits()[0].sequence.prompt, kept);
}

TEST_F(GatewayOptionsTest, AGrammarIsCheckedAndSentOn) {
  const auto bad = Client().Post("/v1/completions", R"({"prompt": "no", "guided_regex": "["})");
  EXPECT_THAT(ErrorOf(bad, 400), HasSubstr("'guided_regex': "));
  EXPECT_TRUE(targets_[0]->submits().empty());
  const auto good =
      Client().Post("/v1/completions", R"({"prompt": "no", "guided_regex": "no|yes"})");
  EXPECT_EQ(good.status, 200);
  ASSERT_EQ(targets_[0]->submits().size(), 1u);
  const schemas::SequenceRequest sequence = targets_[0]->submits()[0].sequence;
  EXPECT_EQ(sequence.grammar.source, "no|yes");
  EXPECT_EQ(sequence.grammar.language, base::GrammarLanguage::kRegex);
  EXPECT_TRUE(sequence.rules.masked);
}

TEST_F(GatewayOptionsTest, AGrammarInGbnfIsSentOnAsLark) {
  const auto bad =
      Client().Post("/v1/completions", R"({"prompt": "no", "grammar": "root ::= <nobody>"})");
  EXPECT_THAT(ErrorOf(bad, 400), HasSubstr("'grammar': "));
  EXPECT_TRUE(targets_[0]->submits().empty());
  const auto good =
      Client().Post("/v1/completions", R"({"prompt": "no", "ebnf": "root ::= \"no\" | [a-c]"})");
  EXPECT_EQ(good.status, 200);
  ASSERT_EQ(targets_[0]->submits().size(), 1u);
  const schemas::SequenceRequest sequence = targets_[0]->submits()[0].sequence;
  EXPECT_EQ(sequence.grammar.source, "start: r0\nr0: T2\nT2: \"no\" | /[a-c]/\n");
  EXPECT_EQ(sequence.grammar.language, base::GrammarLanguage::kLark);
}

TEST_F(GatewayOptionsTest, ForeignOptionsAreRefusedByName) {
  EXPECT_THAT(
      ErrorOf(Client().Post("/v1/completions", R"({"prompt": "no", "structural_tag": "a"})"), 400),
      HasSubstr("'structural_tag' is not supported"));
  EXPECT_TRUE(targets_[0]->submits().empty());
}

class SpecialTokensTest : public GatewayFixture {
 protected:
  SpecialTokensTest() {
    FakeTargetOptions options = TargetOptions();
    options.corpus = tokenizer_->Encode("he<|end|>is", false).value();
    AddTarget(options);
    StartGateway();
  }
};

TEST_F(SpecialTokensTest, TheyHaveTextOnRequest) {
  const std::string body =
      R"({"prompt": "no", "max_tokens": 9, "seed": 4, "ignore_eos": true, "skip_special_tokens": )";
  const auto ids = targets_[0]->Output(4, 9);
  const std::string shown = Complete(body + "false}")["choices"][0]["text"];
  EXPECT_EQ(shown, tokenizer_->Decode(ids, false).value());
  EXPECT_THAT(shown, HasSubstr("<|end|>"));
  EXPECT_EQ(Complete(body + "true}")["choices"][0]["text"], tokenizer_->Decode(ids, true).value());
}

class DefaultsTest : public GatewayFixture {
 protected:
  DefaultsTest() {
    AddTarget();
    GatewayOptions options;
    options.sampling_defaults = {.temperature = 0.5, .top_k = 20, .max_tokens = 3};
    StartGateway(options, 1);
  }
};

TEST_F(DefaultsTest, ApplyToFieldsThatARequestLeavesOut) {
  const std::string chat = R"({"messages": [{"role": "user", "content": "no"}])";
  const Json answer = Ok(Client().Post("/v1/chat/completions", chat + "}"));
  EXPECT_EQ(answer["usage"]["completion_tokens"], 3);
  Complete(R"({"prompt": "no", "top_k": 0, "max_tokens": 4})");
  const auto submits = targets_[0]->submits();
  ASSERT_EQ(submits.size(), 2u);
  EXPECT_EQ(submits[0].sequence.sampling.temperature, 0.5f);
  EXPECT_EQ(submits[0].sequence.sampling.top_k, 20);
  EXPECT_EQ(submits[1].sequence.sampling.temperature, 0.5f);
  EXPECT_EQ(submits[1].sequence.sampling.top_k, 0);
  EXPECT_EQ(submits[1].sequence.max_tokens, 4);
}

}  // namespace
}  // namespace specfabric::gateway
