#include "gateway/parse_grammar.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gateway/parsed.h"

namespace specfabric::gateway {
namespace {

using base::Grammar;
using base::GrammarLanguage;
using ::testing::HasSubstr;

std::string WithFields(const std::string& fields) { return R"({"prompt": "a", )" + fields + "}"; }

constexpr GrammarLanguage kSchema = GrammarLanguage::kJsonSchema;

TEST(ParseGrammarTest, EveryWayToAskForAForm) {
  const Grammar gbnf = {GrammarLanguage::kLark, "start: r0\nr0: \"a\"\n"};
  const std::vector<std::pair<std::string, Grammar>> cases = {
      {R"("response_format": {"type": "text"})", {}},
      {R"("response_format": null)", {}},
      {R"("response_format": {"type": "json_object"})", {kSchema, R"({"type":"object"})"}},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true,
           "schema": {"type": "object", "properties": {"b": {}, "a": {}}}}})",
       {kSchema, R"({"type":"object","properties":{"b":{},"a":{}}})"}},
      {R"("response_format": {"type": "json_object", "schema": {"type": "array"}})",
       {kSchema, R"({"type":"array"})"}},
      {R"("response_format": {"type": "json_schema", "schema": true})", {kSchema, "true"}},
      {R"("structured_outputs": {"json": {"type": "null"}, "regex": null})",
       {kSchema, R"({"type":"null"})"}},
      {R"("structured_outputs": {"json_object": true, "disable_any_whitespace": true})",
       {kSchema, R"({"type":"object"})"}},
      {R"("structured_outputs": {"regex": "a+"})", {GrammarLanguage::kRegex, "a+"}},
      {R"("structured_outputs": {"choice": ["a", "é"]})",
       {GrammarLanguage::kChoice, R"(["a","é"])"}},
      {R"("structured_outputs": {"grammar": "start: \"a\"\n"})",
       {GrammarLanguage::kLark, "start: \"a\"\n"}},
      {R"("guided_json": {"enum": [1]})", {kSchema, R"({"enum":[1]})"}},
      {R"("guided_json": "{\"enum\": [1]}")", {kSchema, R"({"enum": [1]})"}},
      {R"("json_schema": "{}")", {kSchema, "{}"}},
      {R"("guided_regex": "a")", {GrammarLanguage::kRegex, "a"}},
      {R"("regex": "a")", {GrammarLanguage::kRegex, "a"}},
      {R"("guided_choice": ["x"])", {GrammarLanguage::kChoice, R"(["x"])"}},
      {R"("guided_grammar": "start: \"a\"")", {GrammarLanguage::kLark, "start: \"a\""}},
      {R"("guided_grammar": "# x\nroot ::= \"a\"")", gbnf},
      {R"("structured_outputs": {"grammar": "root ::= \"a\"\n"})", gbnf},
      {R"("ebnf": "root ::= \"a\"")", gbnf},
      {R"("grammar": "root ::= \"a\"")", gbnf},
      {R"("grammar": "")", {}},
      {R"("grammar": null, "ebnf": null)", {}},
      {R"("grammar": "", "regex": "a")", {GrammarLanguage::kRegex, "a"}},
  };
  for (const auto& [fields, grammar] : cases) {
    SCOPED_TRACE(fields);
    const GenerationRequest request = Good(ParseCompletion(WithFields(fields)));
    EXPECT_EQ(request.grammar.source, grammar.source);
    EXPECT_EQ(request.grammar, grammar);
    EXPECT_EQ(request.rules.masked, !grammar.empty());
    EXPECT_EQ(request.grammar_field.empty(), grammar.empty());
  }
}

TEST(ParseGrammarTest, WhatIsNoForm) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"response_format", "\"json\""},
      {"response_format", "{}"},
      {"response_format", R"({"type": "structural_tag", "structures": []})"},
      {"response_format", R"({"type": "json_schema"})"},
      {"response_format", R"({"type": "json_schema", "json_schema": {"name": "n"}})"},
      {"response_format", R"({"type": "json_schema", "json_schema": {"schema": []}})"},
      {"structured_outputs", "[]"},
      {"structured_outputs", "{}"},
      {"structured_outputs", R"({"regex": null})"},
      {"structured_outputs", R"({"structural_tag": "x"})"},
      {"structured_outputs", R"({"regex": ""})"},
      {"guided_json", "5"},
      {"guided_json", "\"\""},
      {"guided_choice", "[]"},
      {"guided_choice", R"(["a", 1])"},
      {"guided_choice", R"([""])"},
      {"guided_choice", "\"a\""},
      {"guided_grammar", "{}"},
      {"bad_words", "\"a\""},
      {"bad_words", R"(["a", ""])"},
      {"bad_words", R"([1])"},
      {"guided_regex", "[]"},
      {"guided_grammar", "\"root ::= b\""},
      {"structured_outputs", R"({"grammar": "root ::= b"})"},
      {"ebnf", "{}"},
      {"ebnf", "\"\""},
      {"ebnf", "\"a\""},
      {"ebnf", R"("start: \"a\"")"},
      {"grammar", "[]"},
      {"grammar", "\" \""},
      {"grammar", R"("start: \"a\"")"},
  };
  for (const auto& [field, value] : cases) {
    SCOPED_TRACE(value);
    const ApiError error = Bad(ParseCompletion(WithFields("\"" + field + "\": " + value)));
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.param, field);
    EXPECT_THAT(error.message, HasSubstr("'" + field + "'"));
  }
}

TEST(ParseGrammarTest, OneFieldAloneDescribesTheForm) {
  const ApiError error = Bad(ParseCompletion(
      WithFields(R"("response_format": {"type": "json_object"}, "guided_regex": "a")")));
  EXPECT_EQ(error.param, "guided_regex");
  EXPECT_THAT(error.message, HasSubstr("'response_format' and 'guided_regex'"));
  EXPECT_EQ(
      Bad(ParseCompletion(WithFields(R"("structured_outputs": {"regex": "a", "choice": ["a"]})")))
          .param,
      "structured_outputs");
}

TEST(ParseGrammarTest, LongGrammarsAreRefused) {
  const std::string regex(base::kMaxGrammarBytes + 1, 'a');
  const ApiError error = Bad(ParseCompletion(WithFields(R"("regex": ")" + regex + "\"")));
  EXPECT_THAT(error.message, HasSubstr("at most 262144"));
  const ApiError gbnf = Bad(ParseCompletion(WithFields(R"("ebnf": ")" + regex + "\"")));
  EXPECT_EQ(gbnf.message, "'ebnf' has 262145 bytes; at most 262144 are allowed");
}

TEST(ParseGrammarTest, GbnfMayBecomeTooLong) {
  std::string choices;
  for (int i = 0; i < 40'000; ++i) choices += "[-]";
  const ApiError error =
      Bad(ParseCompletion(WithFields(R"("grammar": "root ::= )" + choices + "\"")));
  EXPECT_EQ(error.param, "grammar");
  EXPECT_THAT(error.message, HasSubstr("'grammar' becomes a grammar of "));
  EXPECT_THAT(error.message, HasSubstr("at most 262144"));
}

TEST(ParseGrammarTest, ErrorsOfGbnfSayWhere) {
  const ApiError error =
      Bad(ParseCompletion(WithFields(R"("grammar": "root ::= item\nitems ::= \"a\"")")));
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.message, "'grammar': line 1, column 10: rule 'item' is not defined");
}

}  // namespace
}  // namespace specfabric::gateway
