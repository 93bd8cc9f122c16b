#include "gateway/parse_speculation.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/parsed.h"

namespace specfabric::gateway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Completion(const std::string& fields) { return R"({"prompt": "a", )" + fields + "}"; }

GenerationRequest With(const std::string& speculation) {
  return Good(ParseCompletion(Completion(R"("speculation": )" + speculation)));
}

ApiError BadWith(const std::string& speculation) {
  return Bad(ParseCompletion(Completion(R"("speculation": )" + speculation)));
}

TEST(ParseSpeculationTest, WhatIsLeftOutIsTheServersChoice) {
  for (const char* given :
       {"null", "{}", R"({"enabled": true})", R"({"enabled": null, "max_tokens": null,
        "method": null, "drafter": null})",
        R"({"max_tokens": 63})"}) {
    const GenerationRequest request = With(given);
    EXPECT_TRUE(request.speculate) << given;
    EXPECT_EQ(request.max_draft_tokens, kMaxDraftTokens) << given;
    EXPECT_EQ(request.verification, "") << given;
    EXPECT_EQ(request.drafter, "") << given;
    EXPECT_TRUE(request.ignored_fields.empty()) << given;
  }
}

TEST(ParseSpeculationTest, Members) {
  const GenerationRequest request = With(
      R"({"enabled": true, "max_tokens": 4, "method": "rejection", "drafter": "ngram_lookup"})");
  EXPECT_TRUE(request.speculate);
  EXPECT_EQ(request.max_draft_tokens, 4);
  EXPECT_EQ(request.verification, "rejection");
  EXPECT_EQ(request.drafter, "ngram_lookup");
  const GenerationRequest chat = Good(ParseChat(
      R"({"messages": [{"role": "user", "content": "a"}], "speculation": {"enabled": false}})"));
  EXPECT_FALSE(chat.speculate);
}

TEST(ParseSpeculationTest, NoDraftTokensAreNoSpeculation) {
  EXPECT_FALSE(With(R"({"max_tokens": 0})").speculate);
  EXPECT_FALSE(With(R"({"enabled": true, "max_tokens": 0})").speculate);
  EXPECT_FALSE(With(R"({"enabled": false, "max_tokens": 8})").speculate);
}

TEST(ParseSpeculationTest, TheMethodIsTheFieldVerification) {
  const auto both = [](const std::string& method) {
    return ParseCompletion(
        Completion(R"("verification": "coupled", "speculation": {"method": ")" + method + "\"}"));
  };
  EXPECT_EQ(Good(both("coupled")).verification, "coupled");
  const ApiError error = Bad(both("rejection"));
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.param, "speculation.method");
  EXPECT_EQ(error.message,
            "'speculation.method' is \"rejection\" and 'verification' is \"coupled\"; they are the "
            "same setting, and one is enough");
}

TEST(ParseSpeculationTest, ErrorsSayWhatWasGivenAndWhatIsAllowed) {
  const auto expect = [](const std::string& given, const std::string& param,
                         const std::string& message) {
    const ApiError error = BadWith(given);
    EXPECT_EQ(error.status, 400) << given;
    EXPECT_EQ(error.param, param) << given;
    EXPECT_THAT(error.message, HasSubstr(message)) << given;
    EXPECT_THAT(error.message, Not(HasSubstr("\n"))) << given;
  };
  expect("3", "speculation", "'speculation' must be an object, got 3");
  expect("[]", "speculation", "must be an object");
  expect(R"({"num_tokens": 3})", "speculation",
         "'speculation' has the member \"num_tokens\"; allowed are enabled, max_tokens, method and "
         "drafter");
  expect(R"({"a\n": null})", "speculation", R"(has the member "a\n"; allowed)");
  expect(R"({"enabled": 1})", "speculation.enabled",
         "'speculation.enabled' must be true or false, got 1");
  for (const char* number : {"-1", "64", "1.5", "1e300", "\"4\"", "true"}) {
    expect(std::string(R"({"max_tokens": )") + number + "}", "speculation.max_tokens",
           std::string("'speculation.max_tokens' must be a whole number from 0 to 63, got ") +
               (std::string(number) == "1e300" ? "1e+300" : number));
  }
  expect(R"({"method": 2})", "speculation.method", "must be a string, got 2");
  expect(R"({"drafter": ["ngram_lookup"]})", "speculation.drafter", "must be a string");
  for (const std::string& name : {std::string(), std::string("a\\nb"), std::string(257, 'x')}) {
    expect(R"({"drafter": ")" + name + "\"}", "speculation.drafter",
           "'speculation.drafter' must be ngram_lookup or a draft model's name, one line of 1 to "
           "256 bytes, got ");
  }
  EXPECT_EQ(With(R"({"drafter": ")" + std::string(256, 'x') + "\"}").drafter.size(), 256u);
}

TEST(ParseSpeculationTest, LargeValuesAreCutInErrors) {
  const std::string large(1 << 20, 'x');
  EXPECT_LT(BadWith(R"({")" + large + R"(": 1})").message.size(), 300u);
  EXPECT_LT(BadWith(R"({"drafter": ")" + large + "\"}").message.size(), 300u);
  EXPECT_LT(BadWith(R"({"max_tokens": [[")" + large + "\"]]}").message.size(), 300u);
  const ApiError both = Bad(ParseCompletion(Completion(
      R"("verification": ")" + large + R"(", "speculation": {"method": ")" + large + "y\"}")));
  EXPECT_LT(both.message.size(), 300u);
}

}  // namespace
}  // namespace specfabric::gateway
