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
    return Prepare(std::get<GenerationRequest>(std::move(request)), *tokenizer_,
                   ChatFormatOf(*tokenizer_), model_, [this] { return ++drawn_; });
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

TEST_F(PrepareTest, OneSequenceForEachChoice) {
  const Prepared prepared =
      Good(R"({"model": "m", "prompt": ["that", "no"], "n": 2, "seed": 9, "max_tokens": 5,
               "temperature": 0.5, "stop_token_ids": [7], "slo_tpot_ms": 1e-9,
               "priority": 4})");
  ASSERT_EQ(prepared.submits.size(), 4u);
  EXPECT_EQ(prepared.submits[0].sequence.prompt, tokenizer_->Encode("that", true).value());
  EXPECT_EQ(prepared.submits[1].sequence.prompt, prepared.submits[0].sequence.prompt);
  EXPECT_EQ(prepared.submits[2].sequence.prompt, tokenizer_->Encode("no", true).value());
  EXPECT_EQ(prepared.submits[0].sequence.sampling.seed, 9u);
  EXPECT_EQ(prepared.submits[1].sequence.sampling.seed, base::ChoiceSeed(9, 1));
  EXPECT_EQ(prepared.submits[2].sequence.sampling.seed, 9u);
  EXPECT_EQ(prepared.submits[0].sequence.sampling.temperature, 0.5f);
  EXPECT_EQ(prepared.submits[0].sequence.max_tokens, 5);
  EXPECT_EQ(prepared.submits[3].sequence.priority, -4);
  EXPECT_EQ(prepared.submits[3].sequence.tpot_slo, 1);            // not rounded to 0
  EXPECT_EQ(prepared.submits[0].sequence.stop_ids, Ids({0, 7}));  // with the end of text
  EXPECT_EQ(prepared.prompt_tokens,
            static_cast<int64_t>(prepared.prompts[0].ids.size() + prepared.prompts[1].ids.size()));
  EXPECT_EQ(drawn_, 100u);
}

TEST_F(PrepareTest, DrawsASeedForEachPrompt) {
  const Prepared prepared = Good(R"({"prompt": ["a", "b"], "n": 2})");
  EXPECT_EQ(prepared.submits[0].sequence.sampling.seed, 101u);
  EXPECT_EQ(prepared.submits[1].sequence.sampling.seed, base::ChoiceSeed(101, 1));
  EXPECT_EQ(prepared.submits[2].sequence.sampling.seed, 102u);
}

TEST_F(PrepareTest, IgnoreEosKeepsTheRequestsStops) {
  EXPECT_TRUE(Good(R"({"prompt": "a", "ignore_eos": true})").submits[0].sequence.stop_ids.empty());
}

TEST_F(PrepareTest, EndTokensAreSuppressedBeforeMinTokens) {
  const Prepared plain = Good(R"({"prompt": "a", "stop_token_ids": [7]})");
  EXPECT_TRUE(plain.submits[0].sequence.rules.suppressed_token_ids.empty());
  const Prepared longer = Good(R"({"prompt": "a", "stop_token_ids": [7], "min_tokens": 3,
                                   "logit_bias": {"319": -1}, "presence_penalty": 1})");
  EXPECT_EQ(longer.submits[0].sequence.rules.suppressed_token_ids, Ids({0, 7}));
  EXPECT_EQ(longer.submits[0].sequence.rules.min_tokens, 3);
  EXPECT_EQ(longer.submits[0].sequence.rules.presence_penalty, 1.0f);
  EXPECT_EQ(longer.submits[0].sequence.rules.bias, (std::vector<base::LogitBias>{{319, -1.0f}}));
  const Prepared ignoring =
      Good(R"({"prompt": "a", "stop_token_ids": [7], "min_tokens": 3, "ignore_eos": true})");
  EXPECT_EQ(ignoring.submits[0].sequence.rules.suppressed_token_ids, Ids({0, 7}));
  EXPECT_EQ(ignoring.submits[0].sequence.stop_ids, Ids({7}));
}

TEST_F(PrepareTest, MaxTokensIsLimitedByTheContext) {
  EXPECT_EQ(
      Good(R"({"prompt": [1, 2, 3], "max_tokens": 1000000000000})").submits[0].sequence.max_tokens,
      17);
}

TEST_F(PrepareTest, PromptsBeyondTheContext) {
  std::string ids = "1";
  for (int i = 1; i < 20; ++i) ids += ",1";
  EXPECT_EQ(Good("{\"prompt\": [" + ids + "], \"max_tokens\": 0}").submits[0].sequence.max_tokens,
            0);
  ApiError error = Bad("{\"prompt\": [" + ids + "], \"max_tokens\": 1}");
  EXPECT_EQ(error.code, "context_length_exceeded");
  error = Bad("{\"prompt\": [" + ids + ",1], \"max_tokens\": 0}");
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.message,
            "'prompt' has 21 tokens; this model's maximum context length is 20 tokens, prompt and "
            "output together");
}

TEST_F(PrepareTest, KeepsTheEndOfAPrompt) {
  const std::string ids = R"({"prompt": [1, 2, 3, 4, 5], "truncate_prompt_tokens": )";
  const Prepared three = Good(ids + "3}");
  EXPECT_EQ(three.submits[0].sequence.prompt, Ids({3, 4, 5}));
  EXPECT_EQ(three.prompts[0].ids, Ids({3, 4, 5}));
  EXPECT_EQ(three.prompt_tokens, 3);
  EXPECT_EQ(three.submits[0].sequence.max_tokens, 16);
  EXPECT_EQ(Good(ids + "5}").submits[0].sequence.prompt.size(), 5u);
  EXPECT_EQ(Good(ids + "1e30}").submits[0].sequence.prompt.size(), 5u);
  // A truncated prompt has no text any more; a complete one has.
  const Prepared text = Good(R"({"prompt": "that he said", "truncate_prompt_tokens": 1})");
  Ids whole = tokenizer_->Encode("that he said", true).value();
  EXPECT_EQ(text.submits[0].sequence.prompt, Ids({whole.back()}));
  EXPECT_FALSE(text.prompts[0].has_text);
  EXPECT_TRUE(Good(R"({"prompt": "no", "truncate_prompt_tokens": 9})").prompts[0].has_text);
}

TEST_F(PrepareTest, FitsAPromptToTheContext) {
  std::string ids = "0";
  for (int i = 1; i < 50; ++i) ids += "," + std::to_string(i);
  const std::string head = R"({"prompt": [)" + ids + R"(], "truncate_prompt_tokens": -1)";
  const auto kept = [&](const std::string& rest) {
    const Prepared prepared = Good(head + rest + "}");
    EXPECT_EQ(prepared.submits[0].sequence.prompt.back(), 49);
    return std::pair(prepared.submits[0].sequence.prompt.size(),
                     prepared.submits[0].sequence.max_tokens);
  };
  EXPECT_EQ(kept(""), (std::pair<size_t, int32_t>(4, 16)));
  EXPECT_EQ(kept(R"(, "max_tokens": 5)"), (std::pair<size_t, int32_t>(15, 5)));
  EXPECT_EQ(kept(R"(, "max_tokens": 0)"), (std::pair<size_t, int32_t>(20, 0)));
  EXPECT_EQ(kept(R"(, "max_tokens": 1000)"), (std::pair<size_t, int32_t>(1, 19)));
  const Prepared chat = Good(R"({"messages": [{"role": "user", "content": "that that that that"}],
                                 "truncate_prompt_tokens": -1})",
                             true);
  EXPECT_EQ(chat.submits[0].sequence.prompt.size(), 19u);
  EXPECT_EQ(chat.submits[0].sequence.max_tokens, 1);
  EXPECT_EQ(Bad(R"({"prompt": [1, 2], "truncate_prompt_tokens": 0})").param,
            "truncate_prompt_tokens");
}

TEST_F(PrepareTest, TopPOfZeroIsTemperatureZero) {
  const std::string rest = R"("prompt": "a", "seed": 3, "presence_penalty": 1, "n": 2})";
  const Prepared greedy = Good(R"({"temperature": 0, )" + rest);
  const Prepared zero = Good(R"({"temperature": 0.9, "top_p": 0, )" + rest);
  ASSERT_EQ(zero.submits.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(schemas::Encode(zero.submits[i]), schemas::Encode(greedy.submits[i]));
  }
}

TEST_F(PrepareTest, EchoWithLogprobsScores) {
  EXPECT_TRUE(
      Good(R"({"prompt": "a", "echo": true, "logprobs": 0})").submits[0].sequence.score_prompt);
  EXPECT_FALSE(Good(R"({"prompt": "a", "echo": true})").submits[0].sequence.score_prompt);
  EXPECT_FALSE(Good(R"({"prompt": "a", "logprobs": 3})").submits[0].sequence.score_prompt);
  EXPECT_EQ(Good(R"({"prompt": "a", "logprobs": 3})").submits[0].sequence.logprobs, 3);
}

TEST_F(PrepareTest, RequestsThatTheModelCannotServe) {
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

TEST_F(PrepareTest, ChatsAreRenderedByTheTemplate) {
  model_.context = 500;
  const std::string messages = R"([{"role": "user", "content": "that"}])";
  const Prepared prepared = Good("{\"messages\": " + messages + "}", true);
  const std::string rendered = tokenizer_->ApplyChatTemplate(messages, true).value();
  EXPECT_THAT(rendered, HasSubstr("that"));
  EXPECT_EQ(prepared.submits[0].sequence.prompt, tokenizer_->Encode(rendered, false).value());
  EXPECT_EQ(prepared.submits[0].sequence.max_tokens,
            500 - static_cast<int32_t>(prepared.submits[0].sequence.prompt.size()));
}

TEST_F(PrepareTest, VariablesReachTheTemplate) {
  const tokenizer::TempDir folder;
  folder.CopyTokenizer("byte_level_words");
  folder.Write("tokenizer_config.json", "{}");
  folder.Write(
      "chat_template.jinja",
      "{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %} "
      "no{% endif %}{% for d in documents or [] %} {{ d.text }}{% endfor %}");
  tokenizer_ = tokenizer::LoadFrom(folder);
  model_.context = 500;
  const auto rendered = [this](const std::string& rest) {
    const std::string body = R"({"messages": [{"role": "user", "content": "that"}])" + rest + "}";
    const Prepared prepared = Good(body, true);
    const Parsed<TokenizeRequest> tokenize = ParseTokenize(body);
    EXPECT_EQ(std::get<Ids>(Tokenize(std::get<TokenizeRequest>(tokenize), *tokenizer_)),
              prepared.submits[0].sequence.prompt);
    return tokenizer_->Decode(prepared.submits[0].sequence.prompt, false).value();
  };
  EXPECT_EQ(rendered(""), "that");
  EXPECT_EQ(rendered(R"(, "chat_template_kwargs": {"enable_thinking": false})"), "that no");
  EXPECT_EQ(rendered(R"(, "chat_template_kwargs": {"enable_thinking": true})"), "that");
  EXPECT_EQ(rendered(R"(, "reasoning_effort": "none")"), "that no");
  EXPECT_EQ(rendered(R"(, "reasoning_effort": "low")"), "that");
  EXPECT_EQ(rendered(R"(, "documents": [{"text": "he"}, {"text": "is"}])"), "that he is");
}

TEST_F(PrepareTest, SpecialTokensAroundAChatIfRequested) {
  model_.context = 500;
  const std::string messages = R"([{"role": "user", "content": "that"}])";
  const std::string text = tokenizer_->ApplyChatTemplate(messages, true).value();
  EXPECT_EQ(Good(R"({"add_special_tokens": true, "messages": )" + messages + "}", true)
                .submits[0]
                .sequence.prompt,
            tokenizer_->Encode(text, true).value());
}

TEST_F(PrepareTest, LongNamesAreCutInErrors) {
  const std::string name(1 << 20, 'x');
  EXPECT_LT(Bad(R"({"prompt": "a", "model": ")" + name + "\"}").message.size(), 300u);
  EXPECT_LT(Bad(R"({"prompt": "a", "verification": ")" + name + "\"}").message.size(), 300u);
}

TEST_F(PrepareTest, WithoutATemplateThereIsNoChat) {
  tokenizer_ = tokenizer::LoadFixture("plain_words");
  const ApiError error = Bad(R"({"messages": [{"role": "user", "content": "a"}]})", true);
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.param, "messages");
}

TEST_F(PrepareTest, VerificationMethodsByName) {
  EXPECT_EQ(Good(R"({"prompt": "no"})").submits[0].verification, std::nullopt);
  EXPECT_EQ(Good(R"({"prompt": "no", "verification": "rejection"})").submits[0].verification,
            schemas::VerificationMethod::kRejection);
  const ApiError error = Bad(R"({"prompt": "no", "verification": "magic"})");
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.param, "verification");
  EXPECT_EQ(error.message,
            "verification is 'magic': allowed are coupled, rejection, traversal, typical");
  EXPECT_EQ(
      Good(R"({"prompt": "no", "speculation": {"method": "typical"}})").submits[0].verification,
      schemas::VerificationMethod::kTypical);
  const ApiError member = Bad(R"({"prompt": "no", "speculation": {"method": "magic"}})");
  EXPECT_EQ(member.param, "speculation.method");
  EXPECT_EQ(member.message, error.message);
}

TEST_F(PrepareTest, EverySequenceHasTheLimitsOfItsRequest) {
  for (const schemas::Submit& submit : Good(R"({"prompt": ["no", "that"], "n": 2,
                "speculation": {"max_tokens": 5, "drafter": "small"}})")
                                           .submits) {
    EXPECT_TRUE(submit.sequence.speculate);
    EXPECT_EQ(submit.sequence.max_draft_tokens, 5);
    EXPECT_EQ(submit.sequence.drafter, "small");
  }
  EXPECT_FALSE(
      Good(R"({"prompt": "no", "speculation": {"enabled": false}})").submits[0].sequence.speculate);
  const schemas::SequenceRequest plain = Good(R"({"prompt": "no"})").submits[0].sequence;
  EXPECT_TRUE(plain.speculate);
  EXPECT_FALSE(plain.limits_drafts());
}

}  // namespace
}  // namespace specfabric::gateway
