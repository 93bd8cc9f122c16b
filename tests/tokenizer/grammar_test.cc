#include "tokenizer/grammar.h"

#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tokenizer/fixture.h"

namespace specfabric::tokenizer {
namespace {

using base::Grammar;
using base::GrammarLanguage;
using base::TokenId;
using testing::HasSubstr;
using testing::Not;

struct Rig {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Grammars> grammars;
  size_t words = 0;

  explicit Rig(const std::string& fixture) : tokenizer(LoadFixture(fixture)) {
    auto made = Grammars::Create(*tokenizer);
    EXPECT_TRUE(made.ok()) << made.status();
    if (made.ok()) grammars = *std::move(made);
    words = MaskWords(tokenizer->vocab_size() + 70);  // as a model's vocabulary that is padded
  }

  GrammarMatcher Compile(GrammarLanguage language, const std::string& source) const {
    auto matcher = grammars->Compile({language, source});
    EXPECT_TRUE(matcher.ok()) << matcher.status();
    return *std::move(matcher);
  }
  std::vector<uint32_t> Mask(GrammarMatcher* matcher) const {
    std::vector<uint32_t> mask(words, ~0u);
    EXPECT_EQ(matcher->Mask(absl::MakeSpan(mask)), absl::OkStatus());
    return mask;
  }
  std::vector<TokenId> Allowed(GrammarMatcher* matcher) const {
    const std::vector<uint32_t> mask = Mask(matcher);
    std::vector<TokenId> allowed;
    for (size_t id = 0; id < mask.size() * 32; ++id) {
      if (mask[id / 32] >> (id % 32) & 1) allowed.push_back(static_cast<TokenId>(id));
    }
    return allowed;
  }
  bool IsEnd(TokenId id) const {
    const auto& ends = tokenizer->eos_ids();
    return std::find(ends.begin(), ends.end(), id) != ends.end();
  }
  // A text drawn at random from what the grammar allows, end token included.
  std::vector<TokenId> Draw(GrammarMatcher matcher, std::mt19937* random, int most = 400) const {
    std::vector<TokenId> text;
    while (static_cast<int>(text.size()) < most) {
      std::vector<TokenId> allowed = Allowed(&matcher);
      // Ends as soon as it may, so that texts are short.
      const auto end =
          std::find_if(allowed.begin(), allowed.end(), [&](TokenId id) { return IsEnd(id); });
      const TokenId next = end != allowed.end() ? *end : allowed[(*random)() % allowed.size()];
      text.push_back(next);
      if (IsEnd(next)) return text;
      EXPECT_EQ(matcher.Consume({next}), absl::OkStatus());
    }
    return text;
  }
  std::string Text(const std::vector<TokenId>& ids) const {
    return tokenizer->Decode(ids, /*skip_special_tokens=*/true).value_or("?");
  }
};

constexpr char kPerson[] = R"({
  "type": "object",
  "properties": {
    "name": {"type": "string", "maxLength": 8},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "tags": {"type": "array", "items": {"enum": ["a", "b<|end|>"]}, "maxItems": 3}
  },
  "required": ["name", "age"],
  "additionalProperties": false
})";

// Those with an end token and with tokens for all characters of the schema's texts.
std::vector<std::string> Fixtures() {
  std::vector<std::string> names;
  for (const std::string& name : FixtureNames()) {
    const auto grammars = Grammars::Create(*LoadFixture(name));
    if (grammars.ok() && (*grammars)->Compile({GrammarLanguage::kJsonSchema, kPerson}).ok()) {
      names.push_back(name);
    }
  }
  EXPECT_GE(names.size(), 3u);
  return names;
}

TEST(GrammarTest, WhatASchemaAllowsIsValid) {
  for (const std::string& fixture : Fixtures()) {
    SCOPED_TRACE(fixture);
    const Rig rig(fixture);
    const GrammarMatcher start = rig.Compile(GrammarLanguage::kJsonSchema, kPerson);
    std::mt19937 random(1);
    for (int i = 0; i < 20; ++i) {
      const std::vector<TokenId> ids = rig.Draw(start.Clone(), &random);
      ASSERT_TRUE(rig.IsEnd(ids.back())) << rig.Text(ids);
      const Json value = Json::parse(rig.Text(ids), nullptr, /*allow_exceptions=*/false);
      ASSERT_TRUE(value.is_object()) << rig.Text(ids);
      EXPECT_TRUE(value["name"].is_string()) << value;
      EXPECT_TRUE(value["age"].is_number_integer() && value["age"] <= 150) << value;
      EXPECT_LE(value.size(), 3u);
    }
  }
}

// So that trees can be walked in any order, and a resumed sequence goes on as before.
TEST(GrammarTest, AnswersDependOnTheTokensConsumedAlone) {
  for (const std::string& fixture : Fixtures()) {
    SCOPED_TRACE(fixture);
    const Rig rig(fixture);
    const GrammarMatcher start = rig.Compile(GrammarLanguage::kJsonSchema, kPerson);
    std::mt19937 random(2);
    for (int i = 0; i < 10; ++i) {
      const std::vector<TokenId> ids = rig.Draw(start.Clone(), &random);
      GrammarMatcher walker = start.Clone();
      for (size_t at = 0; at < ids.size(); ++at) {
        GrammarMatcher fresh = start.Clone();
        ASSERT_TRUE(fresh.Consume(absl::MakeConstSpan(ids).first(at)).ok());
        // Down some way that leads elsewhere, and back.
        const std::vector<TokenId> allowed = rig.Allowed(&walker);
        int steps = 0;
        for (; steps < 5 && !walker.stopped(); ++steps) {
          const std::vector<TokenId> here = rig.Allowed(&walker);
          ASSERT_TRUE(walker.Consume({here[random() % here.size()]}).ok());
        }
        ASSERT_TRUE(walker.Rollback(steps).ok());
        ASSERT_EQ(rig.Allowed(&walker), allowed);
        ASSERT_EQ(rig.Allowed(&fresh), allowed);
        ASSERT_EQ(fresh.Forced(), walker.Forced());
        ASSERT_TRUE(walker.Consume({ids[at]}).ok());
      }
    }
  }
}

TEST(GrammarTest, ATokenIsAllowedExactlyIfItsMaskBitIsSet) {
  const Rig rig("byte_level_words");
  GrammarMatcher matcher = rig.Compile(GrammarLanguage::kRegex, "[ab]+c?");
  for (const char* text : {"", "a", "ba"}) {
    const auto ids = rig.tokenizer->Encode(text, false);
    GrammarMatcher here = matcher.Clone();
    ASSERT_TRUE(here.Consume(*ids).ok());
    const std::vector<TokenId> allowed = rig.Allowed(&here);
    const std::set<TokenId> set(allowed.begin(), allowed.end());
    for (TokenId id = -1; id < rig.tokenizer->vocab_size() + 40; ++id) {
      if (rig.IsEnd(id)) continue;
      EXPECT_EQ(here.Allowed({id}) == 1, set.contains(id)) << id;
    }
    EXPECT_EQ(here.Accepts(), *text != '\0');
  }
}

TEST(GrammarTest, OnlyEndTokensFollowAWholeText) {
  const Rig rig("byte_level_words");
  for (const auto& [language, source] : std::vector<std::pair<GrammarLanguage, std::string>>{
           {GrammarLanguage::kChoice, R"(["yes", "no \"\\ é\n"])"},
           {GrammarLanguage::kRegex, "(yes|no)"},
           {GrammarLanguage::kLark, "start: \"yes\" | \"no\""}}) {
    GrammarMatcher matcher = rig.Compile(language, source);
    std::set<std::string> texts;
    std::mt19937 random(3);
    for (int i = 0; i < 20; ++i) texts.insert(rig.Text(rig.Draw(matcher.Clone(), &random)));
    EXPECT_EQ(texts.size(), 2u);
    EXPECT_TRUE(texts.contains("yes"));
    const auto yes = rig.tokenizer->Encode("yes", false);
    ASSERT_TRUE(matcher.Consume(*yes).ok());
    for (TokenId id : rig.Allowed(&matcher)) EXPECT_TRUE(rig.IsEnd(id));
    // And after the end token, too.
    ASSERT_TRUE(matcher.Consume({rig.tokenizer->eos_ids().front()}).ok());
    EXPECT_TRUE(matcher.stopped());
    for (TokenId id : rig.Allowed(&matcher)) EXPECT_TRUE(rig.IsEnd(id));
  }
}

TEST(GrammarTest, ForcedTokensAreThoseThatMayCome) {
  const Rig rig("byte_level_words");
  GrammarMatcher matcher = rig.Compile(GrammarLanguage::kJsonSchema,
                                       R"({"type": "object", "properties": {"kind": {"const":
                                           "a constant text of some length"}},
                                           "required": ["kind"], "additionalProperties": false})");
  int forced = 0;
  std::vector<TokenId> text;
  while (!matcher.stopped() && text.size() < 200) {
    for (TokenId id : matcher.Forced()) {
      ASSERT_EQ(rig.Allowed(&matcher), std::vector<TokenId>{id});
      ASSERT_TRUE(matcher.Consume({id}).ok());
      text.push_back(id);
      ++forced;
    }
    const TokenId next = rig.Allowed(&matcher).back();
    ASSERT_TRUE(matcher.Consume({next}).ok());
    text.push_back(next);
    if (rig.IsEnd(next)) break;
  }
  EXPECT_GT(forced, 5) << rig.Text(text);
  EXPECT_THAT(rig.Text(text), HasSubstr("a constant text"));
}

TEST(GrammarTest, SpecialTokensAreNoText) {
  const Rig rig("byte_level_words");
  GrammarMatcher matcher = rig.Compile(GrammarLanguage::kRegex, "(.|\\n)*x");
  for (TokenId id : rig.Allowed(&matcher)) {
    EXPECT_FALSE(rig.tokenizer->IsSpecial(id)) << id;
  }
}

TEST(GrammarTest, BadGrammarsAreRefusedInOneLine) {
  const Rig rig("byte_level_words");
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += R"({"items":)";
  const std::vector<Grammar> bad = {
      {GrammarLanguage::kJsonSchema, "{"},
      {GrammarLanguage::kJsonSchema, "3"},
      {GrammarLanguage::kJsonSchema, R"({"type": "tree"})"},
      {GrammarLanguage::kJsonSchema, R"({"$ref": "http://127.0.0.1/schema"})"},
      {GrammarLanguage::kJsonSchema, R"({"$ref": "#/$defs/none"})"},
      {GrammarLanguage::kJsonSchema, R"({"type": "string", "pattern": "("})"},
      {GrammarLanguage::kJsonSchema, R"({"allOf": [{"type": "string"}, {"type": "integer"}]})"},
      {GrammarLanguage::kJsonSchema, deep},
      {GrammarLanguage::kRegex, "("},
      {GrammarLanguage::kRegex, "a(?=b)"},
      {GrammarLanguage::kChoice, "[]"},
      {GrammarLanguage::kChoice, R"(["a", 3])"},
      {GrammarLanguage::kChoice, R"([""])"},
      {GrammarLanguage::kLark, "start: missing"},
      {GrammarLanguage::kLark, "other: \"a\""},
      {GrammarLanguage::kLark, "start: \"a\nstart: \xFF"},
      {GrammarLanguage::kLark, std::string(base::kMaxGrammarBytes + 1, ' ')},
  };
  for (const Grammar& grammar : bad) {
    SCOPED_TRACE(grammar.source.substr(0, 60));
    const auto compiled = rig.grammars->Compile(grammar);
    ASSERT_FALSE(compiled.ok());
    EXPECT_EQ(compiled.status().code(), absl::StatusCode::kInvalidArgument) << compiled.status();
    EXPECT_THAT(std::string(compiled.status().message()), Not(HasSubstr("\n")));
    EXPECT_LT(compiled.status().message().size(), 600u);
  }
}

// As deep as grammars may be: they are read recursively.
TEST(GrammarTest, LongChainsOfRulesAreRead) {
  const Rig rig("byte_level_words");
  constexpr int kLinks = 6000;
  std::string rules = "start: a0\n", terminals = "start: A0\n", references = R"({"$defs": {)";
  for (int i = 0; i < kLinks; ++i) {
    const std::string here = std::to_string(i), next = std::to_string(i + 1);
    rules += "a" + here + ": \"a\" a" + next + "\n";
    terminals += "A" + here + ": \"a\" A" + next + "\n";
    references += R"("a)" + here + R"(": {"$ref": "#/$defs/a)" + next + R"("}, )";
  }
  const std::string last = std::to_string(kLinks);
  rules += "a" + last + ": \"b\"\n";
  terminals += "A" + last + ": \"b\"\n";
  references += "\"a" + last + R"(": {"enum": ["b"]}}, "$ref": "#/$defs/a0"})";
  for (const Grammar& grammar : std::vector<Grammar>{{GrammarLanguage::kLark, rules},
                                                     {GrammarLanguage::kLark, terminals},
                                                     {GrammarLanguage::kJsonSchema, references}}) {
    const auto compiled = rig.grammars->Compile(grammar);
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    GrammarMatcher matcher = compiled->Clone();
    const std::string text = grammar.source == references ? "\"b\"" : std::string(60, 'a');
    const auto ids = rig.tokenizer->Encode(text, false);
    EXPECT_EQ(matcher.Allowed(*ids), static_cast<int>(ids->size()));
    EXPECT_TRUE(matcher.Consume(*ids).ok());
    EXPECT_FALSE(rig.Allowed(&matcher).empty());
  }
}

TEST(GrammarTest, NeedsAnEndToken) {
  const TempDir dir;
  dir.CopyTokenizer("byte_level_words");
  const auto made = Grammars::Create(*LoadFrom(dir));
  EXPECT_EQ(made.status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace specfabric::tokenizer
