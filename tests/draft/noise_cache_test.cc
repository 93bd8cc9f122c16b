#include "draft/noise_cache.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampling/gumbel.h"
#include "sampling/sampling.h"

namespace specfabric::draft {
namespace {

using testing::ElementsAreArray;

constexpr int32_t kVocabulary = 100;
constexpr size_t kRowBytes = kVocabulary * sizeof(float);

std::vector<float> Made(uint64_t seed, int32_t position) {
  std::vector<float> noise(kVocabulary);
  sampling::GumbelNoise(seed, static_cast<uint32_t>(position), 0, absl::MakeSpan(noise));
  return noise;
}

TEST(NoiseCacheTest, GivesTheNoiseOfSeedAndPosition) {
  NoiseCache cache(20 * kRowBytes, kVocabulary);
  for (int round = 0; round < 3; ++round) {
    for (uint64_t seed : {1, 2, 77}) {
      for (int32_t position : {0, 1, 50}) {
        EXPECT_THAT(cache.Row(seed, position), ElementsAreArray(Made(seed, position)));
      }
    }
  }
}

TEST(NoiseCacheTest, MakesARowOnceWhileThereIsRoom) {
  NoiseCache cache(8 * kRowBytes, kVocabulary);
  for (int round = 0; round < 5; ++round) {
    for (int32_t position = 0; position < 8; ++position) cache.Row(3, position);
  }
  EXPECT_EQ(cache.made(), 8u);
}

TEST(NoiseCacheTest, LeastRecentlyUsedMakesRoom) {
  NoiseCache cache(8 * kRowBytes, kVocabulary);
  for (int32_t position = 0; position < 8; ++position) cache.Row(3, position);
  cache.Row(3, 0);
  cache.Row(3, 8);
  EXPECT_EQ(cache.made(), 9u);
  cache.Row(3, 0);
  EXPECT_EQ(cache.made(), 9u);
  EXPECT_THAT(cache.Row(3, 1), ElementsAreArray(Made(3, 1)));
  EXPECT_EQ(cache.made(), 10u);
}

TEST(NoiseCacheTest, MoreThanItHoldsIsRightToo) {
  for (size_t rows : {0, 1, 3, 8, 13}) {
    NoiseCache cache(rows * kRowBytes, kVocabulary);
    EXPECT_EQ(cache.rows(), std::max<size_t>(rows, 1));
    for (int32_t position = 0; position < 300; ++position) {
      const uint64_t seed = position % 7;
      EXPECT_THAT(cache.Row(seed, position), ElementsAreArray(Made(seed, position)));
    }
  }
}

}  // namespace
}  // namespace specfabric::draft
