// The device's arg-max against the CPU's: the same token and the same bits of its score.

#include "verification/cuda/arg_max.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "sampling/gumbel.h"
#include "sampling/sampling.h"
#include "tests/cuda/device.h"
#include "tests/cuda/row_joins.h"
#include "tests/cuda/shuffle.h"

namespace specfabric::verification::cuda {
namespace {

using base::cuda::DeviceArray;
using base::cuda::DeviceTest;
using base::cuda::LogitMatrix;

using sampling::ScoredToken;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A shard in host memory; rows may be wider than the shard.
struct HostShard {
  base::DataType type = base::DataType::kFloat32;
  int32_t rows = 1, first = 0, size = 1;
  int64_t stride = 1;
  std::vector<float> values = {};  // [rows][stride]; exact in bfloat16 where that is the type

  ScoredToken Expected(const RowChoice& how) const {
    const absl::Span<const float> logits =
        absl::MakeConstSpan(values).subspan(how.row * stride, size);
    std::vector<float> noise(size);
    sampling::GumbelNoise(how.seed, how.position, first, absl::MakeSpan(noise));
    return sampling::PerturbedArgMax(logits, noise, how.temperature, first);
  }

  std::vector<ScoredToken> OnDevice(const std::vector<RowChoice>& how) const {
    DeviceArray<float> wide(values);
    std::vector<uint16_t> short_values;
    for (float value : values) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      short_values.push_back(static_cast<uint16_t>(bits >> 16));
    }
    DeviceArray<uint16_t> narrow(short_values);
    const bool is_wide = type == base::DataType::kFloat32;
    const LogitMatrix matrix = {.logits = is_wide ? static_cast<void*>(wide.data()) : narrow.data(),
                                .type = type,
                                .stride = stride,
                                .first = first,
                                .size = size};
    DeviceArray<RowChoice> choices(how);
    DeviceArray<PackedChoice> packed(how.size());
    const auto count = static_cast<int32_t>(how.size());
    RowJoins joins(count, size);
    std::vector<PackedChoice> first_run;
    for (const uint64_t seed : {1, 2}) {
      base::cuda::ShuffleThreads(seed);
      EXPECT_EQ(EnqueueArgMax(matrix, choices.data(), nullptr, count, joins.As<RowJoin>(),
                              packed.data(), nullptr),
                absl::OkStatus());
      if (seed == 1) first_run = packed.Read();
    }
    EXPECT_EQ(packed.Read(), first_run);
    EXPECT_TRUE(joins.AreZeros());
    std::vector<ScoredToken> winners;
    for (PackedChoice choice : first_run) winners.push_back(Unpack(choice));
    return winners;
  }
};

void ExpectSame(const HostShard& shard, const std::vector<RowChoice>& how) {
  const std::vector<ScoredToken> winners = shard.OnDevice(how);
  for (size_t i = 0; i < how.size(); ++i) {
    const ScoredToken expected = shard.Expected(how[i]);
    EXPECT_EQ(winners[i].token, expected.token) << i;
    EXPECT_EQ(winners[i].score, expected.score) << i;
  }
}

class ArgMaxTest : public DeviceTest {};

TEST_F(ArgMaxTest, ChoosesAsTheCpuDoes) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, 4);
  for (base::DataType type : {base::DataType::kFloat32, base::DataType::kBFloat16}) {
    for (int32_t size : {1, 3, 4, 31, 1000, 4096, 32'000, 128'256}) {
      for (int32_t first : {0, 1, 4, 16'032, 16'033}) {
        HostShard shard = {
            .type = type, .rows = 5, .first = first, .size = size, .stride = size + size % 3};
        for (int64_t i = 0; i < shard.rows * shard.stride; ++i) {
          float value = normal(rng);
          uint32_t bits;
          std::memcpy(&bits, &value, sizeof(bits));
          if (type == base::DataType::kBFloat16) bits &= 0xffff0000u;
          std::memcpy(&value, &bits, sizeof(bits));
          shard.values.push_back(value);
        }
        std::vector<RowChoice> how;
        for (int row : {0, 1, 2, 3, 4, 2, 0}) {
          how.push_back({.row = row,
                         .seed = rng() * uint64_t{0x100000001},
                         .position = static_cast<uint32_t>(rng() % 5000),
                         .temperature = 0.5f * static_cast<float>(row)});
        }
        SCOPED_TRACE(testing::Message() << "size " << size << " first " << first);
        ExpectSame(shard, how);
      }
    }
  }
}

TEST_F(ArgMaxTest, TiesGoToTheLowestId) {
  HostShard shard = {.rows = 1, .first = 8, .size = 5000, .stride = 5000};
  shard.values.assign(5000, -1.0f);
  for (int i : {4999, 3001, 777}) shard.values[i] = 2.0f;
  EXPECT_EQ(shard.OnDevice({RowChoice{}})[0].token, 8 + 777);
  shard.values.assign(5000, 0.0f);
  shard.values[0] = -0.0f;
  EXPECT_EQ(shard.OnDevice({RowChoice{}})[0].token, 8);
}

// At every place: inside and outside of words of four, and in every thread's part.
TEST_F(ArgMaxTest, LogitsThatAreNotFiniteShowAsOnTheCpu) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (base::DataType type : {base::DataType::kFloat32, base::DataType::kBFloat16}) {
    for (int32_t size : {1, 3, 70, 1003, 9000}) {
      for (int32_t first : {0, 3}) {
        HostShard shard = {.type = type, .first = first, .size = size, .stride = int64_t{size} + 1};
        std::vector<RowChoice> how;
        for (float value : {nan, -nan, kInfinity, -kInfinity}) {
          for (int at : {0, 1, size / 2, size - 2, size - 1}) {
            if (at < 0 || at >= size) continue;
            const size_t begin = shard.values.size();
            shard.values.resize(begin + shard.stride, 1.0f);
            shard.values.back() = nan;  // beyond the last row
            shard.values[begin + at] = value;
            const float temperature = at % 2 == 0 ? 0.0f : 1.0f;
            how.push_back({static_cast<int32_t>(how.size()), 1, 2, temperature});
          }
        }
        shard.rows = static_cast<int32_t>(how.size());
        SCOPED_TRACE(testing::Message() << "size " << size << " first " << first);
        ExpectSame(shard, how);
        for (const ScoredToken& winner : shard.OnDevice(how)) {
          EXPECT_EQ(winner.score, sampling::kNotFinite);
        }
      }
    }
  }
}

// Noise is made only where an upper bound of the score allows for the best one: the bound must hold
// whatever the logits and temperatures.
TEST_F(ArgMaxTest, NoBoundExcludesTheBest) {
  std::mt19937 rng(3);
  constexpr float kMax = std::numeric_limits<float>::max();
  for (const auto& [spread, temperature] : std::vector<std::pair<float, float>>{{0, 1},
                                                                                {0, 1e-3f},
                                                                                {0, 1e30f},
                                                                                {1e-3f, 100},
                                                                                {30, 1},
                                                                                {1e30f, 1},
                                                                                {1e30f, 1e30f},
                                                                                {3, 1e-20f},
                                                                                {1, 1e-38f},
                                                                                {kMax / 8, 0.7f},
                                                                                {2, 5}}) {
    HostShard shard = {.rows = 24, .size = 3001, .stride = 3001};
    std::normal_distribution<float> normal(0, 1);
    for (int64_t i = 0; i < shard.rows * shard.stride; ++i) {
      // Some of the rows consist of few values, which the noise alone tells apart.
      const float value = normal(rng);
      shard.values.push_back(spread * (i / shard.stride % 2 == 0 ? value : std::round(value)));
    }
    std::vector<RowChoice> how;
    for (int32_t row = 0; row < shard.rows; ++row) how.push_back({row, rng(), 7, temperature});
    SCOPED_TRACE(testing::Message() << "spread " << spread << " temperature " << temperature);
    ExpectSame(shard, how);
  }
}

// More rows than blocks would be launched for one of them each; and so few ids that lanes have
// none.
TEST_F(ArgMaxTest, ManyRowsChooseAsTheCpuDoes) {
  std::mt19937 rng(4);
  std::normal_distribution<float> normal(0, 2);
  for (int32_t size : {1, 5, 2051}) {
    HostShard shard = {.rows = 513, .size = size, .stride = size};
    std::vector<RowChoice> how;
    for (int32_t row = 0; row < shard.rows; ++row) {
      for (int32_t i = 0; i < size; ++i) shard.values.push_back(normal(rng));
      how.push_back({row, rng(), static_cast<uint32_t>(row), row % 3 == 0 ? 0.0f : 1.0f});
    }
    ExpectSame(shard, how);
  }
}

TEST_F(ArgMaxTest, ShardsTogetherChooseAsOne) {
  std::mt19937 rng(2);
  std::normal_distribution<float> normal(0, 2);
  HostShard whole = {.rows = 1, .first = 0, .size = 1003, .stride = 1003};
  for (int i = 0; i < whole.size; ++i) whole.values.push_back(normal(rng));
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<RowChoice> how = {{0, seed, 17, 1.0f}};
    ScoredToken best;
    for (int32_t first = 0; first < whole.size; first += 251) {
      HostShard part = {.rows = 1, .first = first, .size = std::min(251, whole.size - first)};
      part.stride = part.size;
      part.values.assign(whole.values.begin() + first, whole.values.begin() + first + part.size);
      const ScoredToken winner = part.OnDevice(how)[0];
      if (sampling::Better(winner, best)) best = winner;
    }
    EXPECT_EQ(best.token, whole.Expected(how[0]).token);
  }
}

TEST(PackedChoiceTest, InvalidSizesAreRefused) {
  EXPECT_EQ(EnqueueArgMax({.size = 5}, nullptr, nullptr, 0, nullptr, nullptr, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(EnqueueArgMax({.size = 0}, nullptr, nullptr, 1, nullptr, nullptr, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace specfabric::verification::cuda
