#ifndef SPECFABRIC_TESTS_MODEL_PASSES_H_
#define SPECFABRIC_TESTS_MODEL_PASSES_H_

// What tests of whole passes give to a model and ask of its logits.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/model/group.h"

namespace specfabric::model {

// A KV cache of 64 blocks of four tokens.
inline RankOptions Options(DataType dtype = DataType::kFloat32) {
  return {.dtype = dtype, .kv_blocks = 64, .block_size = 4};
}

inline TestGroup LoadOrDie(const std::string& dir, const RankOptions& options, int ranks = 1) {
  absl::StatusOr<TestGroup> group = TestGroup::Load(dir, options, ranks);
  EXPECT_TRUE(group.ok()) << group.status();
  return *std::move(group);
}

inline LogitRows Logits(TestGroup& group, const Batch& batch) {
  absl::StatusOr<LogitRows> rows = group.Forward(batch);
  EXPECT_TRUE(rows.ok()) << rows.status();
  return rows.value_or(LogitRows{});
}

inline std::vector<int32_t> RandomTokens(int count, uint32_t seed, int vocabulary = 101) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocabulary);
  return tokens;
}

inline std::vector<int32_t> Iota(int first, int count) {
  std::vector<int32_t> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

inline double MaxDifference(const LogitRows& a, const LogitRows& b) {
  EXPECT_EQ(a.size(), b.size());
  double max = 0.0;
  for (size_t r = 0; r < std::min(a.size(), b.size()); ++r) {
    EXPECT_EQ(a[r].size(), b[r].size());
    for (size_t i = 0; i < std::min(a[r].size(), b[r].size()); ++i) {
      const double difference = std::abs(double{a[r][i]} - b[r][i]);
      if (!(difference <= max)) max = difference;  // a NaN wins
    }
  }
  return max;
}

}  // namespace specfabric::model

#endif  // SPECFABRIC_TESTS_MODEL_PASSES_H_
