#include "gateway/prepare.h"

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tokenizer/fixture.h"

namespace specfabric::gateway {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<base::TokenId>;

class PrepareTest : public ::testing::Test {
 protected:
  Parsed<Prepared> Try(const std::string& body, bool chat = false) {
    Parsed<GenerationRequest> request = chat ? ParseChat(body) : ParseCompletion(body);
    if (auto* error = std::get_if<ApiError>(&request)) return std::move(*error);
    return Prepare(std::get<GenerationRequest>(std::move(request)), *tokenizer_, model_,
                   [this] { return ++drawn_; });
  }
  Prepared Good(const std::string& body, bool chat = false) {
    Parsed<Prepared> prepared = Try(body, chat);
    if (auto* error = std::get_if<ApiError>(&prepared)) {
      ADD_FAILURE() << error->message;
      return {};
    }
    return std::get<Prepared>(std::move(prepared));
  }
  ApiError Bad(const std::string& body, bool chat = false) {
    Parsed<Prepared> prepared = Try(body, chat);
    if (!std::holds_alternative<ApiError>(prepared)) {
      ADD_FAILURE() << "was accepted: " << body;
      return {};
    }
    return std::get<ApiError>(std::move(prepared));
  }

  std::unique_ptr<tokenizer::Tokenizer> tokenizer_ = tokenizer::LoadFixture("byte_level_words");
  ServedModel model_ = {"m", 20, 320};
  uint64_t drawn_ = 100;
};

TEST_F(PrepareTest, OneSequenceAChoice) {
  const Prepared prepared =
      Good(R"({"model": "m", "prompt": ["that", "no"], "n": 2, "seed": 9, "max_tokens": 5,
               "temperature": 0.5, "stop_token_ids": [7], "slo_tpot_ms": 1e-9,
               "priority": 4})");
  ASSERT_EQ(prepared.submits.size(), 4u);
  EXPECT_EQ(prepared.submits[0].prompt, tokenizer_->Encode("that", true).value());
  EXPECT_EQ(prepared.submits[1].prompt, prepared.submits[0].prompt);
  EXPECT_EQ(prepared.submits[2].prompt, tokenizer_->Encode("no", true).value());
  EXPECT_EQ(prepared.submits[0].sampling.seed, 9u);
  EXPECT_EQ(prepared.submits[1].sampling.seed, base::ChoiceSeed(9, 1));
  EXPECT_EQ(prepared.submits[2].sampling.seed, 9u);
  EXPECT_EQ(prepared.submits[0].sampling.temperature, 0.5f);
  EXPECT_EQ(prepared.submits[0].max_tokens, 5);
  EXPECT_EQ(prepared.submits[3].priority, -4);
  EXPECT_EQ(prepared.submits[3].tpot_slo, 1);            // what was asked for is not forgotten
  EXPECT_EQ(prepared.submits[0].stop_ids, Ids({0, 7}));  // with the end of text
  EXPECT_EQ(prepared.prompt_tokens,
            static_cast<int64_t>(prepared.prompts[0].ids.size() + prepared.prompts[1].ids.size()));
  EXPECT_EQ(drawn_, 100u);
}

TEST_F(PrepareTest, DrawsASeedForEachPrompt) {
  const Prepared prepared = Good(R"({"prompt": ["a", "b"], "n": 2})");
  EXPECT_EQ(prepared.submits[0].sampling.seed, 101u);
  EXPECT_EQ(prepared.submits[1].sampling.seed, base::ChoiceSeed(101, 1));
  EXPECT_EQ(prepared.submits[2].sampling.seed, 102u);
}

TEST_F(PrepareTest, IgnoringTheEndLeavesOnlyTheRequestsOwnStops) {
  EXPECT_TRUE(Good(R"({"prompt": "a", "ignore_eos": true})").submits[0].stop_ids.empty());
}

TEST_F(PrepareTest, NoEndBeforeTheFewestTokens) {
  const Prepared plain = Good(R"({"prompt": "a", "stop_token_ids": [7]})");
  EXPECT_TRUE(plain.submits[0].rules.barred_ids.empty());
  const Prepared longer = Good(R"({"prompt": "a", "stop_token_ids": [7], "min_tokens": 3,
                                   "logit_bias": {"319": -1}, "presence_penalty": 1})");
  EXPECT_EQ(longer.submits[0].rules.barred_ids, Ids({0, 7}));
  EXPECT_EQ(longer.submits[0].rules.min_tokens, 3);
  EXPECT_EQ(longer.submits[0].rules.presence_penalty, 1.0f);
  EXPECT_EQ(longer.submits[0].rules.bias, (std::vector<base::LogitBias>{{319, -1.0f}}));
  const Prepared ignoring =
      Good(R"({"prompt": "a", "stop_token_ids": [7], "min_tokens": 3, "ignore_eos": true})");
  EXPECT_EQ(ignoring.submits[0].rules.barred_ids, Ids({0, 7}));
  EXPECT_EQ(ignoring.submits[0].stop_ids, Ids({7}));
}

TEST_F(PrepareTest, OutputIsCutToTheContext) {
  EXPECT_EQ(Good(R"({"prompt": [1, 2, 3], "max_tokens": 1000000000000})").submits[0].max_tokens,
            17);
}

TEST_F(PrepareTest, PromptsBeyondTheContext) {
  std::string ids = "1";
  for (int i = 1; i < 20; ++i) ids += ",1";
  EXPECT_EQ(Good("{\"prompt\": [" + ids + "], \"max_tokens\": 0}").submits[0].max_tokens, 0);
  ApiError error = Bad("{\"prompt\": [" + ids + "], \"max_tokens\": 1}");
  EXPECT_EQ(error.code, "context_length_exceeded");
  error = Bad("{\"prompt\": [" + ids + ",1], \"max_tokens\": 0}");
  EXPECT_EQ(error.status, 400);
  EXPECT_THAT(error.message, HasSubstr("21 tokens"));
  EXPECT_THAT(error.message, HasSubstr("20"));
}

TEST_F(PrepareTest, EchoWithLogprobsScores) {
  EXPECT_TRUE(Good(R"({"prompt": "a", "echo": true, "logprobs": 0})").submits[0].score_prompt);
  EXPECT_FALSE(Good(R"({"prompt": "a", "echo": true})").submits[0].score_prompt);
  EXPECT_FALSE(Good(R"({"prompt": "a", "logprobs": 3})").submits[0].score_prompt);
  EXPECT_EQ(Good(R"({"prompt": "a", "logprobs": 3})").submits[0].logprobs, 3);
}

TEST_F(PrepareTest, WhatTheModelCannotTake) {
  EXPECT_EQ(Bad(R"({"model": "other", "prompt": "a"})").status, 404);
  EXPECT_THAT(Bad(R"({"model": "other", "prompt": "a"})").message, HasSubstr("'other'"));
  const ApiError error = Bad(R"({"prompt": [1, 320]})");
  EXPECT_EQ(error.param, "prompt");
  EXPECT_THAT(error.message, HasSubstr("320 at 1"));
  EXPECT_THAT(error.message, HasSubstr("0 to 319"));
  EXPECT_EQ(Bad(R"({"prompt": ""})").param, "prompt");
  EXPECT_EQ(Bad(R"({"prompt": [[]]})").param, "prompt");
  EXPECT_EQ(Bad(R"({"prompt": "a", "stop_token_ids": [320]})").param, "stop_token_ids");
  EXPECT_EQ(Bad(R"({"prompt": "a", "logit_bias": {"320": 1, "4": 2}})").message,
            "'logit_bias' holds the token id 320; the vocabulary has ids 0 to 319");
}

TEST_F(PrepareTest, ChatGoesThroughTheTemplate) {
  model_.context = 500;
  const std::string messages = R"([{"role": "user", "content": "that"}])";
  const Prepared prepared = Good("{\"messages\": " + messages + "}", true);
  const std::string rendered = tokenizer_->ApplyChatTemplate(messages, true).value();
  EXPECT_THAT(rendered, HasSubstr("that"));
  EXPECT_EQ(prepared.submits[0].prompt, tokenizer_->Encode(rendered, false).value());
  EXPECT_EQ(prepared.submits[0].max_tokens,
            500 - static_cast<int32_t>(prepared.submits[0].prompt.size()));
}

TEST_F(PrepareTest, WithoutATemplateThereIsNoChat) {
  tokenizer_ = tokenizer::LoadFixture("plain_words");
  const ApiError error = Bad(R"({"messages": [{"role": "user", "content": "a"}]})", true);
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.param, "messages");
}

TEST_F(PrepareTest, CouplingsGoByName) {
  EXPECT_EQ(Good(R"({"prompt": "no"})").submits[0].coupling, std::nullopt);
  EXPECT_EQ(Good(R"({"prompt": "no", "coupling": "rejection"})").submits[0].coupling,
            schemas::Coupling::kRejection);
  const ApiError error = Bad(R"({"prompt": "no", "coupling": "magic"})");
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.param, "coupling");
  EXPECT_EQ(error.message,
            "coupling is 'magic': allowed are coupled, rejection, traversal, typical");
}

}  // namespace
}  // namespace specfabric::gateway
