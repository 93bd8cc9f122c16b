#include "speculation/draft_probs.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "absl/status/status.h"
#include "base/bfloat16.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampling/draft_row.h"

namespace specfabric::speculation {
namespace {

using base::TokenId;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 8-byte aligned, as registered slots are.
class Slot {
 public:
  explicit Slot(const DraftProbsShape& shape) : words_((shape.bytes() + 7) / 8), shape_(shape) {}
  uint8_t* data() { return reinterpret_cast<uint8_t*>(words_.data()); }
  absl::Span<const uint8_t> bytes() { return {data(), shape_.bytes()}; }

 private:
  std::vector<uint64_t> words_;
  DraftProbsShape shape_;
};

std::vector<uint16_t> Rounded(const std::vector<float>& values) {
  std::vector<uint16_t> rounded;
  for (float value : values) rounded.push_back(base::RoundToBFloat16(value));
  return rounded;
}

std::vector<uint16_t> RandomDraftProbs(int vocabulary, int non_zero, std::mt19937* rng) {
  std::vector<uint16_t> draft_probs(vocabulary, 0);
  std::uniform_real_distribution<float> value(1e-3f, 1.0f);
  std::uniform_int_distribution<int> token(0, vocabulary - 1);
  for (int i = 0; i < non_zero; ++i) draft_probs[token(*rng)] = base::RoundToBFloat16(value(*rng));
  return draft_probs;
}

// (vocabulary, entries)
class ShapeTest : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(ShapeTest, ReadsBackWhatWasWritten) {
  const auto [vocabulary, entries] = GetParam();
  std::mt19937 rng(vocabulary + entries);
  const DraftProbsShape shape = {5, vocabulary, entries};
  Slot slot(shape);
  std::vector<std::vector<uint16_t>> rows;
  DraftProbsWriter writer(shape, slot.data());
  for (int32_t row = 0; row < shape.rows; ++row) {
    // At most as many as fit, and sometimes fewer.
    rows.push_back(RandomDraftProbs(vocabulary, std::min(entries, 1 + entries * row / 4), &rng));
    writer.Write(row, rows.back());
  }
  const auto read = DraftProbs::Open(shape, slot.bytes());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->shape(), shape);
  for (int32_t row = 0; row < shape.rows; ++row) {
    EXPECT_EQ(read->total(row), sampling::TotalProb(rows[row])) << "not the same bits";
    EXPECT_EQ(read->ids(row).size(), shape.whole() ? 0u : static_cast<size_t>(entries));
    for (TokenId token = 0; token < vocabulary; ++token) {
      ASSERT_EQ(read->prob(row, token), base::WidenBFloat16(rows[row][token]))
          << "row " << row << " token " << token;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ShapeTest,
                         ::testing::Values(std::pair(1, 1), std::pair(3, 3), std::pair(1000, 1000),
                                           std::pair(1000, 1), std::pair(1000, 7),
                                           std::pair(1000, 999)));

TEST(ShapeForTest, CutsRowsWhereThatMakesThemSmaller) {
  EXPECT_EQ(ShapeFor(5, 1000, 0), (DraftProbsShape{5, 1000, 1000}));
  EXPECT_EQ(ShapeFor(5, 1000, 8), (DraftProbsShape{5, 1000, 8}));
  EXPECT_EQ(ShapeFor(5, 1000, 7), (DraftProbsShape{5, 1000, 7}));
  EXPECT_EQ(ShapeFor(5, 1000, 7).row_bytes(), 44u) << "of which 2 keep the next row aligned";
  EXPECT_EQ(ShapeFor(5, 1000, 333), (DraftProbsShape{5, 1000, 1000})) << "no smaller";
  EXPECT_EQ(ShapeFor(5, 1000, 332), (DraftProbsShape{5, 1000, 332}));
  EXPECT_EQ(ShapeFor(5, 1000, 334), (DraftProbsShape{5, 1000, 1000}));
  EXPECT_EQ(ShapeFor(5, 1000, 2000), (DraftProbsShape{5, 1000, 1000}));
}

TEST(DraftProbsTest, FillsUpWithTokensOfProbabilityZero) {
  const DraftProbsShape shape = {1, 6, 4};
  Slot slot(shape);
  DraftProbsWriter(shape, slot.data()).Write(0, Rounded({0, 0, 2, 0, 0, 1}));
  const auto read = DraftProbs::Open(shape, slot.bytes());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->ids(0), ElementsAre(0, 1, 2, 5));
}

void ExpectRefused(const DraftProbsShape& shape, absl::Span<const uint8_t> bytes,
                   const std::string& why) {
  const auto read = DraftProbs::Open(shape, bytes);
  ASSERT_FALSE(read.ok()) << why;
  EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(read.status().message()), HasSubstr(why));
}

TEST(DraftProbsTest, OtherSizesAreRefused) {
  const DraftProbsShape shape = {2, 8, 8};
  Slot slot(shape);
  ExpectRefused(shape, slot.bytes().subspan(1), "31 bytes");
  ExpectRefused({-1, 8, 8}, {}, "-1 rows");
  ExpectRefused({1, 0, 0}, {}, "0 tokens");
  // The size in bytes is a multiple of 2^64.
  ExpectRefused({1 << 30, 1 << 30, 1 << 30}, {}, "1073741824 rows");
  ExpectRefused({1 << 30, 1 << 30, 1 << 29}, {}, "1073741824 rows");
  ExpectRefused({1, 8, 9}, slot.bytes(), "9 entries");
}

TEST(DraftProbsTest, InvalidProbabilitiesAreRefused) {
  const DraftProbsShape shape = {1, 4, 4};
  for (uint16_t bad : {0x8001, 0x8000, 0x7F80, 0x7FC0, 0xFF80}) {
    Slot slot(shape);
    std::vector<uint16_t> draft_probs = Rounded({1, 1, 1, 1});
    draft_probs[2] = bad;
    DraftProbsWriter(shape, slot.data()).Write(0, draft_probs);
    ExpectRefused(shape, slot.bytes(), "not finite and at least 0");
  }
  Slot empty(shape);
  ExpectRefused(shape, empty.bytes(), "none above 0");
}

TEST(DraftProbsTest, IdsThatDoNotAscendOrDoNotExistAreRefused) {
  const DraftProbsShape shape = {1, 6, 2};
  for (const std::array<TokenId, 2>& ids :
       {std::array<TokenId, 2>{3, 3}, {4, 1}, {-1, 2}, {5, 6}, {0, 1 << 30}}) {
    Slot slot(shape);
    DraftProbsWriter(shape, slot.data()).Write(0, Rounded({1, 1, 0, 0, 0, 0}));
    std::memcpy(slot.data(), ids.data(), sizeof(ids));
    ExpectRefused(shape, slot.bytes(), "must ascend");
  }
}

TEST(DraftProbsTest, NoRowsAreNoBytes) { EXPECT_TRUE(DraftProbs::Open({0, 8, 8}, {}).ok()); }

}  // namespace
}  // namespace specfabric::speculation
