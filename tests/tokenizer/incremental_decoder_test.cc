#include "tokenizer/incremental_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/tokenizer/fixture.h"

namespace specfabric::tokenizer {
namespace {

using base::TokenId;

// Feeds `ids` in random pieces and checks each piece of text.
std::string DecodePiecewise(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip,
                            std::mt19937& rng) {
  IncrementalDecoder decoder(&tokenizer, skip);
  std::string text;
  size_t at = 0;
  while (at < ids.size()) {
    const size_t count = std::min<size_t>(rng() % 4 == 0 ? rng() % 5 : 1, ids.size() - at);
    const auto piece = decoder.Append(absl::MakeConstSpan(ids).subspan(at, count));
    EXPECT_TRUE(piece.ok()) << piece.status();
    EXPECT_TRUE(IsUtf8(*piece));
    text += *piece;
    at += count;
  }
  const auto rest = decoder.Finish();
  EXPECT_TRUE(rest.ok()) << rest.status();
  EXPECT_TRUE(IsUtf8(*rest));
  return text + *rest;
}

class IncrementalDecoderTest : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Tokenizer> tokenizer_ = LoadFixture(GetParam());
  std::mt19937 rng_{23};
};

TEST_P(IncrementalDecoderTest, PiecesAddUpToTheGoldenTexts) {
  const Json golden = LoadGolden(GetParam());
  for (const Json& entry : golden["encodings"]) {
    const auto ids = entry["ids_with_special"].get<std::vector<TokenId>>();
    EXPECT_EQ(DecodePiecewise(*tokenizer_, ids, true, rng_), entry["decoded"]);
    EXPECT_EQ(DecodePiecewise(*tokenizer_, ids, false, rng_), entry["decoded_with_special"]);
  }
  for (const Json& entry : golden["decodings"]) {
    const auto ids = entry["ids"].get<std::vector<TokenId>>();
    EXPECT_EQ(DecodePiecewise(*tokenizer_, ids, false, rng_), entry["text"]);
  }
}

TEST_P(IncrementalDecoderTest, PiecesOfRandomIdsAddUp) {
  const int32_t size = tokenizer_->vocab_size() + 2;
  for (int round = 0; round < 600; ++round) {
    std::vector<TokenId> ids(rng_() % 24);
    // Sometimes a narrow range, for long runs of byte tokens and of special tokens.
    const int32_t range = round % 3 == 0 ? std::min(size, 12) : size;
    const int32_t base = round % 6 == 0 ? 0 : static_cast<int32_t>(rng_() % (size - range + 1));
    for (TokenId& id : ids) id = base + static_cast<int32_t>(rng_() % range);
    for (bool skip : {false, true}) {
      ASSERT_EQ(DecodePiecewise(*tokenizer_, ids, skip, rng_),
                tokenizer_->Decode(ids, skip).value())
          << testing::PrintToString(ids);
    }
  }
}

TEST_P(IncrementalDecoderTest, PiecesOfRandomTextsAddUp) {
  for (int round = 0; round < 200; ++round) {
    const std::vector<TokenId> ids = tokenizer_->Encode(RandomText(rng_, 40), true).value();
    ASSERT_EQ(DecodePiecewise(*tokenizer_, ids, true, rng_), tokenizer_->Decode(ids, true).value())
        << testing::PrintToString(ids);
  }
}

TEST_P(IncrementalDecoderTest, FinishResetsTheDecoder) {
  IncrementalDecoder decoder(tokenizer_.get(), true);
  const std::vector<TokenId> ids = tokenizer_->Encode("the dog 日 does", false).value();
  std::string first, second;
  first = decoder.Append(ids).value();
  first += decoder.Finish().value();
  second = decoder.Append(ids).value();
  second += decoder.Finish().value();
  EXPECT_EQ(first, second);
  EXPECT_EQ(decoder.Finish().value(), "");
}

INSTANTIATE_TEST_SUITE_P(Fixtures, IncrementalDecoderTest, testing::ValuesIn(FixtureNames()),
                         [](const auto& info) { return info.param; });

TEST(IncrementalDecoderByteLevelTest, ReturnsTextAsSoonAsItIsCertain) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadFixture("byte_level_words");
  IncrementalDecoder decoder(tokenizer.get(), true);
  std::vector<TokenId> by_byte(256);
  for (TokenId id = 0; id < tokenizer->vocab_size(); ++id) {
    const std::string bytes = tokenizer->TokenBytes(id);
    if (bytes.size() == 1) by_byte[static_cast<uint8_t>(bytes[0])] = id;
  }
  const auto feed = [&](uint8_t byte) { return decoder.Append(by_byte[byte]).value(); };
  EXPECT_EQ(feed('a'), "a");
  EXPECT_EQ(feed(0xE4), "");
  EXPECT_EQ(feed(0xBD), "");
  EXPECT_EQ(feed(0xA0), "\u4f60");
  // Bytes that cannot become a character are returned at once, those that can are held back.
  EXPECT_EQ(feed(0x80), "\ufffd");
  EXPECT_EQ(feed(0xFF), "\ufffd");
  EXPECT_EQ(feed(0xF0), "");
  EXPECT_EQ(feed(0x9F), "");
  EXPECT_EQ(feed('b'),
            "\ufffd"
            "b");
  EXPECT_EQ(feed(0xED), "");
  EXPECT_EQ(feed(0xA0), "\ufffd\ufffd");  // a surrogate is no character
  EXPECT_EQ(feed(0xF4), "");
  EXPECT_EQ(feed(0x90), "\ufffd\ufffd");  // beyond U+10FFFF
  EXPECT_EQ(feed(0xE0), "");
  EXPECT_EQ(feed(0x9F), "\ufffd\ufffd");  // overlong
  EXPECT_EQ(feed(0xE4), "");
  EXPECT_EQ(decoder.Finish().value(), "\ufffd");
}

TEST(IncrementalDecoderByteFallbackTest, HoldsARunOfBytesUntilItEnds) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadFixture("byte_fallback_bare");
  const TokenId first_byte = 3;
  ASSERT_EQ(tokenizer->TokenBytes(first_byte + 0xE4), "\xE4");
  const TokenId letter = tokenizer->Encode("e", false).value().at(0);
  ASSERT_FALSE(tokenizer->IsByteFallback(letter));
  IncrementalDecoder decoder(tokenizer.get(), true);
  EXPECT_EQ(decoder.Append({first_byte + 0xE4, first_byte + 0xBD}).value(), "");
  EXPECT_EQ(decoder.Append(first_byte + 0xA0).value(), "");
  EXPECT_EQ(decoder.Append(letter).value(),
            "\u4f60"
            "e");
  // One invalid byte turns the whole run into replacement characters.
  EXPECT_EQ(decoder.Append({first_byte + 'x', first_byte + 0xFF}).value(), "");
  EXPECT_EQ(decoder.Append(letter).value(),
            "\ufffd\ufffd"
            "e");
}

TEST(IncrementalDecoderErrorTest, RefusesNegativeIdsAndContinues) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadFixture("byte_level_words");
  const std::vector<TokenId> ids = tokenizer->Encode("dog", false).value();
  IncrementalDecoder decoder(tokenizer.get(), true);
  EXPECT_EQ(decoder.Append({ids[0], -1}).status().code(), absl::StatusCode::kInvalidArgument);
  std::string text = decoder.Append(ids).value();
  text += decoder.Finish().value();
  EXPECT_EQ(text, "dog");
}

TEST(IncrementalDecoderCopyTest, CopiesContinueIndependently) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadFixture("byte_fallback_prefix");
  const std::vector<TokenId> ids = tokenizer->Encode("the quick dog", false).value();
  IncrementalDecoder decoder(tokenizer.get(), true);
  std::string text = decoder.Append(absl::MakeConstSpan(ids).first(2)).value();
  IncrementalDecoder copy = decoder;
  const std::string left = text + decoder.Append(absl::MakeConstSpan(ids).subspan(2)).value();
  const std::string right = text + copy.Append(absl::MakeConstSpan(ids).subspan(2)).value();
  EXPECT_EQ(left + decoder.Finish().value(), "the quick dog");
  EXPECT_EQ(right + copy.Finish().value(), "the quick dog");
}

}  // namespace
}  // namespace specfabric::tokenizer
