#include "tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "base/hash.h"
#include "tests/tokenizer/fixture.h"
#include "tokenizer/fingerprint.h"

namespace specfabric::tokenizer {
namespace {

using base::TokenId;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<TokenId> Ids(const Json& json) { return json.get<std::vector<TokenId>>(); }

class GoldenTest : public testing::TestWithParam<std::string> {};

TEST_P(GoldenTest, EncodesAndDecodesLikeTheReference) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadFixture(GetParam());
  const Json golden = LoadGolden(GetParam());
  ASSERT_GE(golden["encodings"].size(), 20u);
  for (const Json& entry : golden["encodings"]) {
    const std::string text = entry["text"];
    SCOPED_TRACE(text);
    absl::StatusOr<std::vector<TokenId>> bare = tokenizer->Encode(text, false);
    ASSERT_TRUE(bare.ok()) << bare.status();
    EXPECT_EQ(*bare, Ids(entry["ids"]));
    absl::StatusOr<std::vector<TokenId>> ids = tokenizer->Encode(text, true);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, Ids(entry["ids_with_special"]));
    EXPECT_EQ(tokenizer->Decode(*ids, true).value(), entry["decoded"]);
    EXPECT_EQ(tokenizer->Decode(*ids, false).value(), entry["decoded_with_special"]);
  }
}

TEST_P(GoldenTest, DecodesArbitraryIdsLikeTheReference) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadFixture(GetParam());
  const Json golden = LoadGolden(GetParam());
  ASSERT_GE(golden["decodings"].size(), 20u);
  for (const Json& entry : golden["decodings"]) {
    SCOPED_TRACE(entry.dump());
    EXPECT_EQ(tokenizer->Decode(Ids(entry["ids"]), false).value(), entry["text"]);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, GoldenTest, testing::ValuesIn(FixtureNames()),
                         [](const auto& info) { return info.param; });

TEST(TokenizerTest, NamesTheFirstByteThatIsNotUtf8) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadFixture("byte_level_split");
  const absl::Status status = tokenizer->Encode("ab\xC3(", false).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("byte 2"));
}

TEST(TokenizerTest, RefusesNegativeIds) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadFixture("byte_level_split");
  const absl::Status status = tokenizer->Decode({1, -7}, false).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("-7"));
}

TEST(TokenizerTest, TokenBytesOfByteLevelTokensAddUpToTheText) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadFixture("byte_level_split");
  const Json golden = LoadGolden("byte_level_split");
  for (const Json& entry : golden["encodings"]) {
    std::string bytes;
    for (TokenId id : Ids(entry["ids"])) bytes += tokenizer->TokenBytes(id);
    EXPECT_EQ(bytes, entry["text"]);
  }
}

TEST(TokenizerTest, TokenBytesOfByteFallbackAddUpToTheTextAfterASpace) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadFixture("byte_fallback_prefix");
  for (const char* text : {"Hello, world!", "你好 😀 x", "  two", "a\nb"}) {
    std::string bytes;
    const std::vector<TokenId> ids = tokenizer->Encode(text, false).value();
    for (TokenId id : ids) bytes += tokenizer->TokenBytes(id);
    EXPECT_EQ(bytes, std::string(" ") + text);
  }
}

TEST(TokenizerTest, EveryByteHasAToken) {
  for (const char* name : {"byte_level_words", "byte_fallback_bare"}) {
    const std::unique_ptr<Tokenizer> tokenizer = LoadFixture(name);
    std::vector<bool> seen(256);
    for (TokenId id = 0; id < tokenizer->vocab_size(); ++id) {
      if (tokenizer->decoder_kind() == DecoderKind::kByteFallback &&
          !tokenizer->IsByteFallback(id)) {
        continue;
      }
      const std::string bytes = tokenizer->TokenBytes(id);
      if (bytes.size() == 1) seen[static_cast<uint8_t>(bytes[0])] = true;
    }
    EXPECT_THAT(seen, testing::Each(true)) << name;
  }
}

TEST(TokenizerTest, TokensBeyondTheVocabularyHaveNoBytes) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadFixture("byte_level_words");
  EXPECT_EQ(tokenizer->vocab_size(), 320);
  EXPECT_TRUE(tokenizer->IsKnown(319));
  EXPECT_FALSE(tokenizer->IsKnown(320));
  EXPECT_FALSE(tokenizer->IsKnown(-1));
  EXPECT_EQ(tokenizer->TokenBytes(320), "");
  EXPECT_EQ(tokenizer->TokenBytes(-1), "");
  EXPECT_EQ(tokenizer->Decode({320, 100000}, false).value(), "");
}

TEST(TokenizerTest, ReadsSpecialIdsFromAllFiles) {
  // The tokenizer's files name the tokens; generation_config.json adds an id and has precedence
  // over config.json.
  const std::unique_ptr<Tokenizer> split = LoadFixture("byte_level_split");
  const TokenId begin = split->Encode("<|begin|>", false).value().at(0);
  const TokenId end = split->Encode("<|end|>", false).value().at(0);
  const TokenId tool = split->Encode("<|tool|>", false).value().at(0);
  EXPECT_EQ(split->bos_id(), begin);
  EXPECT_THAT(split->eos_ids(), ElementsAre(end, tool));
  EXPECT_TRUE(split->IsSpecial(end));
  EXPECT_FALSE(split->IsSpecial(tool));
  EXPECT_FALSE(split->IsSpecial(0));

  // "bos_token": null has precedence over a number in config.json; eos_token is an object.
  const std::unique_ptr<Tokenizer> words = LoadFixture("byte_level_words");
  EXPECT_EQ(words->bos_id(), std::nullopt);
  EXPECT_THAT(words->eos_ids(), ElementsAre(0));

  // special_tokens_map.json instead of tokenizer_config.json.
  const std::unique_ptr<Tokenizer> prefix = LoadFixture("byte_fallback_prefix");
  EXPECT_EQ(prefix->bos_id(), 1);
  EXPECT_THAT(prefix->eos_ids(), ElementsAre(2));

  // Only config.json has the ids, and only in its text part.
  const std::unique_ptr<Tokenizer> bare = LoadFixture("byte_fallback_bare");
  EXPECT_THAT(bare->eos_ids(), ElementsAre(2));

  const std::unique_ptr<Tokenizer> plain = LoadFixture("plain_words");
  EXPECT_EQ(plain->bos_id(), std::nullopt);
  EXPECT_THAT(plain->eos_ids(), IsEmpty());
}

TEST(TokenizerTest, FingerprintIsThatOfTheFile) {
  std::ifstream file(FixtureDir("metaspace") + "/tokenizer.json", std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  const std::unique_ptr<Tokenizer> tokenizer = LoadFixture("metaspace");
  EXPECT_EQ(tokenizer->Fingerprint(), base::Fnv1a(content.str()));
  EXPECT_EQ(tokenizer->Fingerprint(), FingerprintOf(FixtureDir("metaspace")).value());
  EXPECT_NE(tokenizer->Fingerprint(), LoadFixture("word_piece")->Fingerprint());
  EXPECT_EQ(FingerprintOf("no/such/folder").status().code(), absl::StatusCode::kNotFound);
}

TEST(TokenizerTest, LoadReportsErrors) {
  TempDir dir;
  absl::Status status = Tokenizer::Load(dir.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no tokenizer.json"));

  for (const char* broken : {"", "{", "[]", "{\"model\": {}}", "{\"version\": \"9.9\"}",
                             "{\"version\": \"1.0\", \"decoder\": {\"type\": \"Nothing\"}}"}) {
    dir.Write("tokenizer.json", broken);
    status = Tokenizer::Load(dir.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << broken << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.json"));
  }
}

TEST(TokenizerTest, LoadRefusesMalformedConfigurations) {
  const std::pair<const char*, const char*> cases[] = {
      {"tokenizer_config.json", "{"},
      {"tokenizer_config.json", "[]"},
      {"tokenizer_config.json", "{\"chat_template\": 7}"},
      {"tokenizer_config.json", "{\"chat_template\": [{\"name\": \"default\"}]}"},
      {"generation_config.json", "{\"eos_token_id\": \"two\"}"},
      {"generation_config.json", "{\"eos_token_id\": [1, -2]}"},
      {"config.json", "{\"eos_token_id\": 4294967295}"},
      {"chat_template.jinja", "\xFF"},
  };
  for (const auto& [name, content] : cases) {
    TempDir dir;
    dir.CopyTokenizer("plain_words");
    dir.Write(name, content);
    const absl::Status status = Tokenizer::Load(dir.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name << content << status;
  }
}

TEST(TokenizerTest, LoadRefusesIdsThatWouldNeedHugeTables) {
  TempDir dir;
  dir.Write("tokenizer.json", R"({"version":"1.0","added_tokens":[],"model":{"type":"WordLevel",)"
                              R"("vocab":{"a":4000000000},"unk_token":"a"}})");
  const absl::Status status = Tokenizer::Load(dir.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("4000000000"));
}

// Byte-level tokenizers keep every text.
TEST(TokenizerTest, RandomTextsSurviveTheRoundTrip) {
  for (const char* name : {"byte_level_split", "byte_level_words", "byte_fallback_bare"}) {
    const std::unique_ptr<Tokenizer> tokenizer = LoadFixture(name);
    std::mt19937 rng(11);
    for (int round = 0; round < 300; ++round) {
      const std::string text = RandomText(rng, 40);
      const std::vector<TokenId> ids = tokenizer->Encode(text, false).value();
      EXPECT_EQ(tokenizer->Decode(ids, false).value(), text) << name;
    }
  }
}

TEST(TokenizerTest, ManyThreadsShareOneTokenizer) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadFixture("byte_level_split");
  const Json golden = LoadGolden("byte_level_split");
  std::vector<std::thread> threads;
  std::vector<int> failures(4);
  for (int& failed : failures) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        for (const Json& entry : golden["encodings"]) {
          const auto ids = tokenizer->Encode(entry["text"].get<std::string>(), true);
          failed += !ids.ok() || *ids != Ids(entry["ids_with_special"]);
          failed += tokenizer->Decode(*ids, true).value() != entry["decoded"].get<std::string>();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(failures, testing::Each(0));
}

}  // namespace
}  // namespace specfabric::tokenizer
