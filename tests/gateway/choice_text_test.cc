#include "gateway/choice_text.h"

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tokenizer/fixture.h"

namespace specfabric::gateway {
namespace {

using ::testing::StartsWith;
using tokenizer::DecoderKind;
using tokenizer::IsUtf8;
using tokenizer::LoadFixture;
using tokenizer::Tokenizer;
using Ids = std::vector<base::TokenId>;

std::shared_ptr<const StopPatterns> Stops(const std::vector<std::string>& stops) {
  return std::make_shared<const StopPatterns>(stops);
}

ChoiceText Make(const Tokenizer& tokenizer, absl::Span<const base::TokenId> prompt,
                ChoiceText::Options options = {}) {
  absl::StatusOr<ChoiceText> text = ChoiceText::Create(&tokenizer, prompt, std::move(options));
  EXPECT_TRUE(text.ok()) << text.status();
  return *std::move(text);
}

// The text of the output, appended in pieces of up to three tokens.
std::string TextOf(ChoiceText text, absl::Span<const base::TokenId> ids, std::mt19937& random) {
  std::string all;
  while (!ids.empty()) {
    const size_t count = std::min<size_t>(ids.size(), 1 + random() % 3);
    absl::StatusOr<TextPiece> piece = text.Append(ids.first(count), {});
    EXPECT_TRUE(piece.ok()) << piece.status();
    EXPECT_TRUE(IsUtf8(piece->text));
    all += piece->text;
    ids.remove_prefix(count);
  }
  return all + text.Finish().value();
}

std::vector<base::TokenLogprobs> Scores(const Ids& ids) {
  std::vector<base::TokenLogprobs> scores;
  for (const base::TokenId id : ids) {
    base::TokenLogprobs score;
    score.token = id;
    score.logprob = -0.5f * static_cast<float>(scores.size());
    score.top = {{id, score.logprob}};
    scores.push_back(std::move(score));
  }
  return scores;
}

void CheckThatPromptAndOutputMakeTheWhole(bool skip_special_tokens) {
  std::mt19937 random(11);
  int checked = 0;
  for (const std::string& name : tokenizer::FixtureNames()) {
    const auto tokenizer = LoadFixture(name);
    if (tokenizer->decoder_kind() == DecoderKind::kWhole) continue;
    for (int trial = 0; trial < 300; ++trial) {
      const Ids ids = tokenizer->Encode(tokenizer::RandomText(random, 30), trial % 2 == 0).value();
      const absl::Span<const base::TokenId> all = ids;
      const size_t cut = random() % (ids.size() + 1);
      const std::string prompt = tokenizer->Decode(all.first(cut), skip_special_tokens).value();
      const std::string whole = tokenizer->Decode(ids, skip_special_tokens).value();
      if (!whole.starts_with(prompt)) continue;  // cut inside a character
      const std::string output =
          TextOf(Make(*tokenizer, all.first(cut), {.skip_special_tokens = skip_special_tokens}),
                 all.subspan(cut), random);
      ASSERT_EQ(prompt + output, whole) << name << ", cut at " << cut << " of " << ids.size();
      ++checked;
    }
  }
  EXPECT_GT(checked, 1000);
}

TEST(ChoiceTextTest, PiecesAddUpToTheWholeText) { CheckThatPromptAndOutputMakeTheWhole(true); }

TEST(ChoiceTextTest, SpecialTokensHaveTextIfNotSkipped) {
  CheckThatPromptAndOutputMakeTheWhole(false);
  const auto tokenizer = LoadFixture("byte_level_words");
  const Ids ids = tokenizer->Encode("he<|end|>he", false).value();
  std::mt19937 random(3);
  EXPECT_EQ(TextOf(Make(*tokenizer, {}), ids, random), "hehe");
  EXPECT_EQ(TextOf(Make(*tokenizer, {}, {.skip_special_tokens = false}), ids, random),
            "he<|end|>he");
}

TEST(ChoiceTextTest, AWholeTextDecoderReturnsAllTextAtTheEnd) {
  std::mt19937 random(5);
  const auto tokenizer = LoadFixture("whole_text");
  ASSERT_EQ(tokenizer->decoder_kind(), DecoderKind::kWhole);
  const Ids ids = tokenizer->Encode("the light over there", false).value();
  EXPECT_EQ(TextOf(Make(*tokenizer, {ids.data(), 2}), ids, random),
            tokenizer->Decode(ids, true).value());
}

TEST(ChoiceTextTest, StopStringsCutTextInsideTokens) {
  const auto tokenizer = LoadFixture("byte_level_words");
  const Ids ids = tokenizer->Encode("that is right, he said", false).value();
  ChoiceText text = Make(*tokenizer, {}, {.stop = Stops({"ght, h"})});
  const auto piece = text.Append(ids, {}).value();
  EXPECT_TRUE(text.stopped());
  const std::string whole = tokenizer->Decode(ids, true).value();
  EXPECT_EQ(piece.text, whole.substr(0, whole.find("ght, h")));
  // The tokens end with the one that completed the stop string.
  EXPECT_LT(piece.ids.size(), ids.size());
  EXPECT_NE(tokenizer->Decode(piece.ids, true).value().find("ght, h"), std::string::npos);
  EXPECT_EQ(text.Finish().value(), "");
}

TEST(ChoiceTextTest, AStopStringInThePromptDoesNotCount) {
  const auto tokenizer = LoadFixture("byte_level_words");
  const Ids prompt = tokenizer->Encode("xy", false).value();
  const Ids output = tokenizer->Encode("yx", false).value();
  ChoiceText text = Make(*tokenizer, prompt, {.stop = Stops({"xy", "yy"})});
  EXPECT_EQ(text.Append(Ids(output.end() - 2, output.end()), {}).value().text, "y");
  EXPECT_EQ(text.Finish().value(), "x");
}

TEST(ChoiceTextTest, AStopTokenIsReportedWithoutText) {
  const auto tokenizer = LoadFixture("byte_level_words");
  const Ids word = tokenizer->Encode("that", false).value();
  Ids ids = word;
  ids.push_back(word.back());
  ChoiceText text = Make(*tokenizer, {}, {.stop_ids = {word.back()}});
  const auto piece = text.Append({&word.back(), 1}, {}).value();
  EXPECT_EQ(piece.text, "");
  EXPECT_EQ(piece.ids, Ids({word.back()}));
}

TEST(ChoiceTextTest, TheTextCanIncludeTheStop) {
  const auto tokenizer = LoadFixture("byte_level_words");
  const Ids ids = tokenizer->Encode("that is right, he said", false).value();
  const std::string whole = tokenizer->Decode(ids, true).value();
  ChoiceText by_string = Make(*tokenizer, {}, {.stop = Stops({"ght, h"}), .include_stop = true});
  EXPECT_EQ(by_string.Append(ids, {}).value().text, whole.substr(0, whole.find("ght, h") + 6));
  EXPECT_TRUE(by_string.stopped());
  ChoiceText by_token = Make(*tokenizer, {}, {.stop_ids = {ids.back()}, .include_stop = true});
  EXPECT_EQ(by_token.Append(ids, {}).value().text + by_token.Finish().value(), whole);
}

TEST(ChoiceTextTest, LogprobsHaveTheOffsetsOfTheirTokens) {
  const auto tokenizer = LoadFixture("byte_level_words");
  const std::string given = "na\u00EFve \u6F22 ok";
  const Ids ids = tokenizer->Encode(given, false).value();
  const std::string whole = tokenizer->Decode(ids, true).value();
  ChoiceText text = Make(*tokenizer, {}, {.logprobs = 20});
  const auto piece = text.Append(ids, Scores(ids)).value();
  ASSERT_EQ(piece.entries.size(), ids.size());
  std::string bytes;
  for (const TokenEntry& entry : piece.entries) {
    // The offset is the number of complete characters before the token.
    int64_t characters = 0;
    const size_t end = whole.starts_with(bytes) ? bytes.size() : 0;
    for (size_t i = 0; i < end; ++i) {
      const bool starts = (static_cast<unsigned char>(whole[i]) & 0xC0) != 0x80;
      characters += starts;
    }
    if (IsUtf8(bytes)) {
      EXPECT_EQ(entry.offset, characters);
    } else {
      EXPECT_EQ(entry.offset, characters - 1);
    }
    bytes += entry.token.bytes;
  }
  EXPECT_EQ(bytes, whole);
}

TEST(ChoiceTextTest, EchoScoresAllPromptTokensButTheFirst) {
  const auto tokenizer = LoadFixture("byte_level_words");
  const Ids prompt = tokenizer->Encode("that he said", false).value();
  const Ids output = tokenizer->Encode("no", false).value();
  ChoiceText text = Make(*tokenizer, prompt, {.logprobs = 20});
  const std::string given = "that he said";
  auto scores = Scores(prompt);
  scores.erase(scores.begin());
  const auto echo = text.Echo(prompt, &given, scores).value();
  EXPECT_EQ(echo.text, given);
  ASSERT_EQ(echo.entries.size(), prompt.size());
  EXPECT_FALSE(echo.entries[0].scored);
  EXPECT_TRUE(echo.entries[1].scored);
  EXPECT_EQ(echo.entries[1].token.id, prompt[1]);
  EXPECT_TRUE(echo.ids.empty());
  const auto piece = text.Append(output, Scores(output)).value();
  EXPECT_EQ(piece.entries[0].offset, static_cast<int64_t>(given.size()));
}

TEST(ChoiceTextTest, StopStringsDoNotCountBeforeMinTokens) {
  const auto tokenizer = LoadFixture("byte_level_words");
  const Ids letter = tokenizer->Encode("x", false).value();
  ASSERT_EQ(letter.size(), 1u);
  for (int32_t min_tokens : {0, 1, 3}) {
    ChoiceText text = Make(*tokenizer, {}, {.stop = Stops({"x"}), .min_tokens = min_tokens});
    std::string whole;
    int tokens = 0;
    for (; tokens < 10 && !text.stopped(); ++tokens) whole += text.Append(letter, {}).value().text;
    EXPECT_EQ(tokens, min_tokens + 1);
    EXPECT_EQ(whole + text.Finish().value(), std::string(min_tokens, 'x'));
  }
}

TEST(ChoiceTextTest, MissingLogprobsAreAnInternalError) {
  const auto tokenizer = LoadFixture("byte_level_words");
  ChoiceText text = Make(*tokenizer, {}, {.logprobs = 20});
  EXPECT_EQ(text.Append(Ids({40}), {}).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(text.Echo(Ids({40, 41}), nullptr, {}).status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace specfabric::gateway
