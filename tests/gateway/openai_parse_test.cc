#include "gateway/openai_parse.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gateway/json_fields.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/parsed.h"

namespace specfabric::gateway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ParseCompletionTest, Defaults) {
  const auto request = Good(ParseCompletion(R"({"prompt": "a"})"));
  EXPECT_FALSE(request.chat());
  EXPECT_EQ(std::get<std::string>(request.prompts.at(0)), "a");
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_EQ(request.n, 1);
  EXPECT_EQ(request.sampling.temperature, 1.0f);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.logprobs, -1);
  EXPECT_EQ(request.tpot_slo, 0);
  EXPECT_FALSE(request.has_seed);
  EXPECT_FALSE(request.stream);
  EXPECT_TRUE(request.add_special_tokens);
}

TEST(ParseCompletionTest, EveryField) {
  const auto request = Good(ParseCompletion(R"({
    "model": "m", "prompt": ["a", "b"], "n": 2, "best_of": 2, "max_tokens": 0, "temperature": 0,
    "top_p": 0.5, "top_k": 7, "min_p": 0.25, "seed": 18446744073709551615, "stop": ["x", "yz"],
    "stop_token_ids": [4], "stream": true, "stream_options": {"include_usage": true},
    "echo": true, "logprobs": 0, "ignore_eos": true, "return_token_ids": true, "user": "u",
    "presence_penalty": -2, "frequency_penalty": 0.5, "repetition_penalty": 1.25,
    "logit_bias": {"70": -100, "3": 2.5, "5": 0}, "min_tokens": 0,
    "suffix": null, "add_special_tokens": false, "unheard_of": [1], "slo_tpot_ms": 12.5,
    "priority": -7, "cache_salt": "s", "timeout": 1.5, "include_stop_str_in_output": true,
    "skip_special_tokens": false, "return_tokens_as_token_ids": true,
    "truncate_prompt_tokens": 9})"));
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.prompts.size(), 2u);
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.max_tokens, 0);
  EXPECT_TRUE(request.sampling.greedy());
  EXPECT_EQ(request.sampling.top_p, 0.5f);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_EQ(request.sampling.min_p, 0.25f);
  EXPECT_TRUE(request.has_seed);
  EXPECT_EQ(request.sampling.seed, 18446744073709551615u);
  EXPECT_EQ(request.stop, std::vector<std::string>({"x", "yz"}));
  EXPECT_EQ(request.stop_token_ids, std::vector<base::TokenId>({4}));
  EXPECT_TRUE(request.stream && request.include_usage && request.echo && request.ignore_eos);
  EXPECT_TRUE(request.return_token_ids);
  EXPECT_EQ(request.logprobs, 0);
  EXPECT_FALSE(request.add_special_tokens);
  EXPECT_EQ(request.rules, (base::LogitRules{.presence_penalty = -2.0f,
                                             .frequency_penalty = 0.5f,
                                             .repetition_penalty = 1.25f,
                                             .bias = {{3, 2.5f}, {70, -100.0f}}}));
  EXPECT_EQ(request.tpot_slo, 12'500 * base::kMicrosecond);
  EXPECT_EQ(request.priority, 7);  // the lowest number goes first
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.timeout, 1500 * base::kMillisecond);
  EXPECT_TRUE(request.include_stop && !request.skip_special_tokens && request.tokens_as_ids);
  EXPECT_EQ(request.keep_prompt_tokens, 9);
  EXPECT_EQ(request.ignored_fields, std::vector<std::string>({"unheard_of"}));
}

TEST(ParseCompletionTest, NeutralRulesAreLeftOut) {
  const auto request = Good(ParseCompletion(R"({"prompt": "a", "presence_penalty": 0,
    "frequency_penalty": 0.0, "repetition_penalty": 1, "logit_bias": {"4": 0}, "min_tokens": 0})"));
  EXPECT_EQ(request.rules, base::LogitRules{});
}

TEST(ParseCompletionTest, RepetitionPenaltiesBeyondAFloatStayInRange) {
  for (const char* value : {"1e-300", "1e300"}) {
    const auto request = Good(
        ParseCompletion(std::string(R"({"prompt": "a", "repetition_penalty": )") + value + "}"));
    EXPECT_GT(request.rules.repetition_penalty, 0.0f);
    EXPECT_LE(request.rules.repetition_penalty, std::numeric_limits<float>::max());
  }
}

TEST(ParseCompletionTest, MaxTokensUnderBothNames) {
  EXPECT_EQ(Good(ParseCompletion(R"({"prompt": "a", "min_tokens": 16})")).rules.min_tokens, 16);
  const auto error = Bad(ParseCompletion(R"({"prompt": "a", "max_tokens": 5, "min_tokens": 6})"));
  EXPECT_EQ(error.message, "'min_tokens' must be at most 'max_tokens', 5, got 6");
  EXPECT_EQ(Good(ParseChat(R"({"messages": [{"role": "user", "content": "a"}],
                               "min_tokens": 1e300})"))
                .rules.min_tokens,
            INT32_MAX);
}

TEST(ParseCompletionTest, ListsOfIdsAreLimited) {
  std::string ids = "1", biases = "\"0\": 1";
  for (int i = 1; i <= kMaxStopTokenIds; ++i) ids += ",1";
  for (int i = 1; i <= kMaxLogitBias; ++i) biases += ",\"" + std::to_string(i) + "\": 1";
  EXPECT_EQ(Bad(ParseCompletion(R"({"prompt": "a", "stop_token_ids": [)" + ids + "]}")).message,
            "'stop_token_ids' must be a list of at most 1024 token ids, got a list of 1025");
  EXPECT_EQ(Bad(ParseCompletion(R"({"prompt": "a", "logit_bias": {)" + biases + "}}")).message,
            "'logit_bias' must be an object of at most 512 token ids, each with a number from -100 "
            "to 100, got an object of 513");
}

TEST(ParseCompletionTest, PromptsOfIds) {
  using Ids = std::vector<base::TokenId>;
  const auto one = Good(ParseCompletion(R"({"prompt": [1, 2]})"));
  EXPECT_EQ(std::get<Ids>(one.prompts.at(0)), Ids({1, 2}));
  const auto two = Good(ParseCompletion(R"({"prompt": [[1], [2, 3]]})"));
  EXPECT_EQ(std::get<Ids>(two.prompts.at(1)), Ids({2, 3}));
}

TEST(ParseCompletionTest, NumbersInDifferentNotations) {
  const auto request = Good(ParseCompletion(
      R"({"prompt": "a", "max_tokens": 1e300, "n": 2.0, "seed": -3, "top_k": -1})"));
  EXPECT_EQ(request.max_tokens, INT64_MAX);
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.sampling.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(Good(ParseCompletion(R"({"prompt": "a", "max_tokens": null})")).max_tokens, 16);
}

// All 64 bits; larger values are refused and not clamped (see above).
TEST(ParseCompletionTest, SeedsHave64Bits) {
  const std::vector<std::pair<std::string, uint64_t>> cases = {
      {"0", 0},
      {"-0", 0},
      {"1e3", 1000},
      {"5.0", 5},
      {"-1", UINT64_MAX},
      {"-1.0", UINT64_MAX},
      {"9223372036854775807", INT64_MAX},
      {"9223372036854775808", uint64_t{1} << 63},
      {"18446744073709551615", UINT64_MAX},
      {"-9223372036854775808", uint64_t{1} << 63},
  };
  for (const auto& [given, seed] : cases) {
    const auto request = Good(ParseCompletion(R"({"prompt": "a", "seed": )" + given + "}"));
    EXPECT_TRUE(request.has_seed);
    EXPECT_EQ(request.sampling.seed, seed) << given;
  }
  EXPECT_EQ(Bad(ParseCompletion(R"({"prompt": "a", "seed": 18446744073709551616})")).message,
            "'seed' must be a whole number from -2^63 to 2^64 - 1, got 1.8446744073709552e+19");
  EXPECT_FALSE(Good(ParseCompletion(R"({"prompt": "a", "seed": null})")).has_seed);
}

// Integers beyond 64 bits keep their meaning: no limit, or out of range.
TEST(ParseCompletionTest, IntegersBeyond64BitsKeepTheirMeaning) {
  const std::string huge = "99999999999999999999999";
  const auto request = Good(ParseCompletion(R"({"prompt": "a", "truncate_prompt_tokens": )" + huge +
                                            R"(, "max_tokens": )" + huge + "}"));
  EXPECT_EQ(request.max_tokens, INT64_MAX);
  EXPECT_EQ(request.keep_prompt_tokens, INT64_MAX);
  for (const char* field : {"n", "top_k", "logprobs", "priority", "best_of", "min_tokens"}) {
    for (const std::string& value : {huge, "-" + huge}) {
      const auto error =
          Bad(ParseCompletion(R"({"prompt": "a", ")" + std::string(field) + "\": " + value + "}"));
      EXPECT_EQ(error.param, field) << value;
    }
  }
  EXPECT_EQ(Bad(ParseCompletion(R"({"prompt": [)" + huge + "]}")).param, "prompt");
  EXPECT_EQ(Bad(ParseDetokenize(R"({"tokens": [)" + huge + "]}")).param, "tokens");
}

TEST(ParseCompletionTest, TopPOfZeroIsGreedy) {
  for (const char* zero : {"0", "0.0", "-0.0"}) {
    const auto request = Good(ParseCompletion(R"({"prompt": "a", "temperature": 1.5, "top_p": )" +
                                              std::string(zero) + "}"));
    EXPECT_EQ(request.sampling,
              Good(ParseCompletion(R"({"prompt": "a", "temperature": 0})")).sampling)
        << zero;
  }
}

TEST(ParseCompletionTest, NegativeZerosAreZeros) {
  const auto request = Good(ParseCompletion(R"({"prompt": "a", "temperature": -0.0,
      "min_p": -0.0, "presence_penalty": -0.0, "frequency_penalty": -0.0})"));
  for (const float value : {request.sampling.temperature, request.sampling.min_p,
                            request.rules.presence_penalty, request.rules.frequency_penalty}) {
    EXPECT_EQ(value, 0.0f);
    EXPECT_FALSE(std::signbit(value));
  }
}

TEST(ParseCompletionTest, StopStringsAreLimited) {
  const auto body = [](size_t count, size_t size) {
    std::string stops;
    for (size_t i = 0; i < count; ++i) {
      stops += (i == 0 ? "\"" : ",\"") + std::string(size, 's') + "\"";
    }
    return R"({"prompt": "a", "stop": [)" + stops + "]}";
  };
  EXPECT_EQ(Good(ParseCompletion(body(5, 3))).stop.size(), 5u);
  EXPECT_EQ(Good(ParseCompletion(body(kMaxStops, kMaxStopBytes / kMaxStops))).stop.size(), 64u);
  EXPECT_EQ(Bad(ParseCompletion(body(kMaxStops + 1, 1))).message,
            "'stop' must be a string or a list of at most 64 strings, none of them empty, of 8192 "
            "bytes together, got a list of 65");
  EXPECT_EQ(Bad(ParseCompletion(body(2, kMaxStopBytes / 2 + 1))).param, "stop");
  EXPECT_EQ(Bad(ParseCompletion(body(1, kMaxStopBytes + 1))).param, "stop");
}

TEST(ParseCompletionTest, DefaultsApplyToFieldsLeftOut) {
  const SamplingDefaults defaults = {.temperature = 0.5,
                                     .top_p = 0.75,
                                     .top_k = 20,
                                     .min_p = 0.25,
                                     .repetition_penalty = 1.5,
                                     .max_tokens = 77};
  const std::string chat = R"({"messages": [{"role": "user", "content": "a"}])";
  for (const auto& request : {Good(ParseCompletion(R"({"prompt": "a", "top_k": null})", defaults)),
                              Good(ParseChat(chat + "}", defaults))}) {
    EXPECT_EQ(request.sampling.temperature, 0.5f);
    EXPECT_EQ(request.sampling.top_p, 0.75f);
    EXPECT_EQ(request.sampling.top_k, 20);
    EXPECT_EQ(request.sampling.min_p, 0.25f);
    EXPECT_EQ(request.rules.repetition_penalty, 1.5f);
    EXPECT_EQ(request.max_tokens, request.chat() ? 77 : 16);
  }
  const std::string said = R"("temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0,
                              "repetition_penalty": 1, "max_tokens": 5})";
  for (const auto& request : {Good(ParseCompletion(R"({"prompt": "a", )" + said, defaults)),
                              Good(ParseChat(chat + ", " + said, defaults))}) {
    EXPECT_EQ(request.sampling, base::SamplingParams());
    EXPECT_EQ(request.rules, base::LogitRules());
    EXPECT_EQ(request.max_tokens, 5);
  }
}

TEST(ParseCompletionTest, StreamOptionsOfOtherServers) {
  const std::string head = R"({"prompt": "a", "stream": true, "stream_options": )";
  const auto request = Good(ParseCompletion(
      head + R"({"include_usage": true, "continuous_usage_stats": true, "new": 1}})"));
  EXPECT_TRUE(request.include_usage);
  EXPECT_TRUE(request.usage_in_each);
  EXPECT_EQ(request.ignored_fields, std::vector<std::string>({"stream_options.new"}));
  for (const char* none :
       {"{}}", R"({"continuous_usage_stats": false}})", R"({"continuous_usage_stats": null}})"}) {
    EXPECT_FALSE(Good(ParseCompletion(head + none)).usage_in_each) << none;
  }
  const auto error = Bad(ParseCompletion(head + R"({"continuous_usage_stats": 1}})"));
  EXPECT_EQ(error.param, "stream_options");
  EXPECT_THAT(error.message, HasSubstr("'continuous_usage_stats'"));
}

TEST(ParseCompletionTest, NumbersThatRoundToTheirLimitsStayInRange) {
  const auto request =
      Good(ParseCompletion(R"({"prompt": "a", "top_p": 1e-60, "min_p": 0.99999999999})"));
  EXPECT_GT(request.sampling.top_p, 0.0f);
  EXPECT_LT(request.sampling.min_p, 1.0f);
}

TEST(ParseCompletionTest, ErrorsNameTheFieldAndItsValue) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"prompt", "5"},
      {"prompt", "[]"},
      {"prompt", "[1, \"two\"]"},
      {"prompt", "[-1]"},
      {"prompt", "[1.5]"},
      {"prompt", "[99999999999]"},
      {"prompt", "[\"a\", 1]"},
      {"prompt", "[[1], \"a\"]"},
      {"model", "1"},
      {"max_tokens", "-1"},
      {"max_tokens", "\"many\""},
      {"max_tokens", "1.5"},
      {"temperature", "-0.1"},
      {"temperature", "2.5"},
      {"temperature", "true"},
      {"top_p", "-0.1"},
      {"top_p", "1.5"},
      {"top_k", "-7"},
      {"min_p", "1"},
      {"n", "0"},
      {"n", "129"},
      {"best_of", "2"},
      {"stop", "3"},
      {"stop", "[\"\"]"},
      {"stop", "\"\""},
      {"stop", "[\"a\", 1]"},
      {"stop_token_ids", "[\"a\"]"},
      {"seed", "\"x\""},
      {"seed", "1.5"},
      {"seed", "-1.5"},
      {"seed", "18446744073709551616"},
      {"seed", "18446744073709551617"},
      {"seed", "99999999999999999999999"},
      {"seed", "1e300"},
      {"seed", "-9223372036854775809"},
      {"seed", "-1e19"},
      {"seed", "true"},
      {"logprobs", "-1"},
      {"logprobs", "21"},
      {"logprobs", "true"},
      {"stream", "\"yes\""},
      {"stream_options", "{\"include_usage\": true}"},
      {"echo", "1"},
      {"ignore_eos", "0"},
      {"suffix", "\"x\""},
      {"logit_bias", "{\"1\": 100.5}"},
      {"logit_bias", "{\"1\": -101}"},
      {"logit_bias", "{\"1\": \"5\"}"},
      {"logit_bias", "{\"-1\": 5}"},
      {"logit_bias", "{\"01\": 5}"},
      {"logit_bias", "{\"a\": 5}"},
      {"logit_bias", "{\"\": 5}"},
      {"logit_bias", "{\"99999999999\": 5}"},
      {"logit_bias", "[5]"},
      {"presence_penalty", "2.5"},
      {"presence_penalty", "\"a\""},
      {"frequency_penalty", "-2.01"},
      {"repetition_penalty", "0"},
      {"repetition_penalty", "-1"},
      {"response_format", "{\"type\": \"structural_tag\"}"},
      {"tools", "[{}]"},
      {"min_tokens", "-1"},
      {"min_tokens", "17"},
      {"min_tokens", "1.5"},
      {"guided_regex", "5"},
      {"priority", "101"},
      {"priority", "-101"},
      {"priority", "\"high\""},
      {"cache_salt", "\"\""},
      {"cache_salt", "5"},
      {"include_stop_str_in_output", "1"},
      {"skip_special_tokens", "\"no\""},
      {"return_tokens_as_token_ids", "1"},
      {"truncate_prompt_tokens", "0"},
      {"truncate_prompt_tokens", "-2"},
      {"truncate_prompt_tokens", "1.5"},
      {"max_completion_tokens", "-1"},
      {"timeout", "0"},
      {"timeout", "-1"},
      {"timeout", "86401"},
      {"timeout", "\"1s\""},
      {"slo_tpot_ms", "0"},
      {"slo_tpot_ms", "-5"},
      {"slo_tpot_ms", "1e9"},
      {"slo_tpot_ms", "\"fast\""},
  };
  for (const auto& [field, value] : cases) {
    const std::string prompt = field == "prompt" ? "" : R"("prompt": "a", )";
    const auto error = Bad(ParseCompletion("{" + prompt + "\"" + field + "\": " + value + "}"));
    EXPECT_EQ(error.status, 400) << field << " " << value;
    EXPECT_EQ(error.param, field) << value;
    EXPECT_THAT(error.message, HasSubstr("'" + field + "'"));
    EXPECT_THAT(error.message, HasSubstr(", got ")) << field;
    EXPECT_THAT(error.message, Not(HasSubstr("\n")));
    EXPECT_EQ(error.type, "invalid_request_error");
  }
}

TEST(ParseCompletionTest, TheChoicesOfAllPromptsAreLimited) {
  const auto error = Bad(ParseCompletion(R"({"prompt": ["a", "b", "c"], "n": 50})"));
  EXPECT_THAT(error.message, HasSubstr("150 choices; at most 128"));
}

TEST(ParseBodyTest, MalformedBodies) {
  const std::vector<std::string> bodies = {
      "",
      "{",
      "null",
      "[1]",
      "\"text\"",
      R"({"prompt": "a",})",
      R"({"prompt": "a"} trailing)",
      std::string("{\"prompt\": \"a\"}\0", 16),
      std::string("{\"prompt\": \"a\"}\0rubbish", 23),
      std::string("{\"prompt\": \"a\"}\n\0{}", 19),
      std::string("{\"prompt\": \"a\0b\"}", 17),
      R"({"prompt": "a"}{"prompt": "a"})",
      R"({"prompt": "a", "temperature": NaN})",
      R"({"prompt": "a", "temperature": Infinity})",
      R"({"prompt": "a", "temperature": 1e999})",
      R"({"prompt": "\udc00\ud800"})",
      R"({"prompt": "\ud800x"})",
      R"({'prompt': "a"})",
      "{\"prompt\": \"a\nb\"}",
      "{\"prompt\": \"\xff\xfe\"}",
      "{\"prompt\": \"\xed\xa0\x80\"}",
      R"({"prompt": "\ud800"})",
      std::string("\x00\x01", 2),
      std::string(100000, '['),
      "{\"prompt\": " + std::string(65, '[') + std::string(65, ']') + "}",
  };
  for (const auto& body : bodies) {
    EXPECT_EQ(Bad(ParseCompletion(body)).status, 400);
    EXPECT_EQ(Bad(ParseChat(body)).status, 400);
    EXPECT_EQ(Bad(ParseTokenize(body)).status, 400);
    EXPECT_EQ(Bad(ParseDetokenize(body)).status, 400);
  }
  EXPECT_THAT(Bad(ParseCompletion("{\"prompt\": \"\xff\"}")).message,
              HasSubstr("UTF-8 at byte 12"));
}

TEST(ParseBodyTest, LongValuesAreCutInErrors) {
  const auto error =
      Bad(ParseCompletion(R"({"prompt": "a", "n": ")" + std::string(5000, 'x') + "\"}"));
  EXPECT_LT(error.message.size(), 200u);
}

TEST(Utf8Test, FindsTheFirstBadByte) {
  EXPECT_EQ(FirstInvalidUtf8("a\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x99\x82"), std::nullopt);
  EXPECT_EQ(FirstInvalidUtf8("a\xC3"), 1u);
  EXPECT_EQ(FirstInvalidUtf8("\x80"), 0u);
  EXPECT_EQ(FirstInvalidUtf8("ab\xC0\x80"), 2u);        // overlong
  EXPECT_EQ(FirstInvalidUtf8("\xE0\x80\x80"), 0u);      // overlong
  EXPECT_EQ(FirstInvalidUtf8("\xED\xA0\x80"), 0u);      // surrogate
  EXPECT_EQ(FirstInvalidUtf8("\xF0\x8F\xBF\xBF"), 0u);  // overlong
  EXPECT_EQ(FirstInvalidUtf8("\xF4\x90\x80\x80"), 0u);  // beyond U+10FFFF
  EXPECT_EQ(FirstInvalidUtf8("\xF0\x9F\x99"), 0u);      // cut
  EXPECT_EQ(FirstInvalidUtf8(std::string("\0x", 2)), std::nullopt);
}

}  // namespace
}  // namespace specfabric::gateway
