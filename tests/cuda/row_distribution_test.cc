// The device's filters and distributions against sampling::FilterMask and
// verification::RowDistribution.

#include "verification/cuda/row_distribution.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "sampling/sampling.h"
#include "tests/cuda/device.h"
#include "tests/cuda/row_joins.h"
#include "tests/cuda/shuffle.h"
#include "verification/cpu/row_distribution.h"
#include "verification/row_probs.h"

namespace specfabric::verification::cuda {
namespace {

using base::cuda::DeviceArray;
using base::cuda::DeviceTest;

using base::SamplingParams;
using verification::kRowChunk;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One row, as a tree of one node.
struct DeviceDistribution {
  RowFilter filter = {};
  std::vector<DistributionChunk> chunks = {};
  DistributionTotals totals = {};

  double Total() const {
    double total = 0;
    for (const DistributionChunk& chunk : chunks) total += chunk.sum;
    return total;
  }
  double InversePerplexity() const {
    return verification::InversePerplexity(totals.sum, totals.power_sum);
  }
};

struct Row {
  std::vector<float> logits = {};
  SamplingParams sampling = {};
};

double Probability(const Row& row, const DeviceDistribution& distribution, int token) {
  const DistributionChunk& chunk = distribution.chunks[token / kRowChunk];
  const float logit = row.logits[token];
  const bool dropped =
      Competitor(logit, static_cast<base::TokenId>(token)) < distribution.filter.least;
  const float value =
      dropped ? 0.0f
              : base::ScaledExp(logit, chunk.reference, base::ScaleFor(row.sampling.temperature));
  return value * chunk.factor / distribution.totals.sum;
}

// [count] values at `place` within the bytes that were read from device memory at `memory`.
template <typename T>
std::vector<T> Part(const std::vector<uint8_t>& bytes, const uint8_t* memory, const T* place,
                    size_t count) {
  std::vector<T> part(count);
  const auto* const from = bytes.data() + (reinterpret_cast<const uint8_t*>(place) - memory);
  std::memcpy(static_cast<void*>(part.data()), from, count * sizeof(T));
  return part;
}

// All of one vocabulary.
std::vector<DeviceDistribution> Distributions(const std::vector<Row>& rows) {
  const int32_t count = static_cast<int32_t>(rows.size());
  const int32_t vocabulary = static_cast<int32_t>(rows[0].logits.size());
  const int32_t chunks = (vocabulary + kRowChunk - 1) / kRowChunk;
  std::vector<int32_t> begin = {0};
  bool filtered = false;
  std::vector<TreeRound> rounds;
  std::vector<float> logits;
  for (const Row& row : rows) {
    rounds.push_back({.verification = speculation::VerificationMethod::kTypical,
                      .sampling = row.sampling,
                      .first_logit = begin.back()});
    begin.push_back(begin.back() + 1);
    filtered = filtered || row.sampling.filtered();
    logits.insert(logits.end(), row.logits.begin(), row.logits.end());
  }
  DeviceArray<int32_t> d_begin(begin);
  DeviceArray<TreeRound> d_rounds(rounds);
  DeviceArray<float> d_logits(logits);
  const RoundBatch batch = {.trees = {.sequences = count, .begin = d_begin.data()},
                            .rounds = d_rounds.data(),
                            .nodes = count,
                            .logits = d_logits.data(),
                            .stride = vocabulary,
                            .vocabulary = vocabulary,
                            .filtered = filtered};
  DeviceArray<uint8_t> workspace(RowDistributions::Bytes(batch));
  RowJoins joins(count, vocabulary);
  const auto distributions = RowDistributions::In(batch, workspace.data(), joins.As());
  std::vector<DeviceDistribution> result;
  for (const uint64_t seed : {1, 2}) {
    base::cuda::ShuffleThreads(seed);
    EXPECT_EQ(EnqueueRowDistributions(batch, distributions, nullptr), absl::OkStatus());
    const std::vector<uint8_t> bytes = workspace.Read();
    const auto filters = Part(bytes, workspace.data(), distributions.filters.of_node, count);
    const auto totals = Part(bytes, workspace.data(), distributions.totals, count);
    for (int32_t i = 0; i < count; ++i) {
      if (seed == 1) result.push_back({filters[i], {}, totals[i]});
      EXPECT_EQ(filters[i].least, result[i].filter.least);
      EXPECT_EQ(filters[i].best, result[i].filter.best);
      if (!filters[i].finite()) continue;
      EXPECT_EQ(std::bit_cast<uint64_t>(totals[i].sum),
                std::bit_cast<uint64_t>(result[i].totals.sum));
      result[i].chunks = Part(bytes, workspace.data(),
                              distributions.distribution_chunks + int64_t{i} * chunks, chunks);
    }
  }
  EXPECT_TRUE(joins.AreZeros());
  return result;
}

std::vector<float> RandomRow(std::mt19937* random, int vocabulary, bool ties) {
  std::normal_distribution<float> normal(0, 1 + static_cast<float>((*random)() % 5));
  std::vector<float> logits(vocabulary);
  for (float& logit : logits) {
    logit = normal(*random);
    if (ties) logit = std::round(2 * logit) / 2;
  }
  if ((*random)() % 16 == 0) logits[(*random)() % vocabulary] = kNan;
  if ((*random)() % 16 == 0) logits[(*random)() % vocabulary] = -kInf;
  if ((*random)() % 16 == 0) logits[(*random)() % vocabulary] = kInf;
  if ((*random)() % 4 == 0) logits[(*random)() % vocabulary] = -kMax;
  if ((*random)() % 16 == 0) logits[(*random)() % vocabulary] = kMax;
  return logits;
}

SamplingParams RandomSampling(std::mt19937* random, int vocabulary) {
  constexpr float kTemperatures[] = {1.0f, 0.05f, 0.7f, 3.0f};
  constexpr float kTopPs[] = {1.0f, 0.5f, 0.9f, 0.999f};
  constexpr float kMinPs[] = {0.0f, 0.0f, 0.02f, 0.3f};
  SamplingParams sampling = {.temperature = kTemperatures[(*random)() % 4],
                             .top_p = kTopPs[(*random)() % 4],
                             .min_p = kMinPs[(*random)() % 4]};
  if ((*random)() % 2 == 0) sampling.top_k = 1 + static_cast<int>((*random)() % (vocabulary + 3));
  return sampling;
}

std::vector<Row> RandomRows(uint32_t seed, int vocabulary, int count) {
  std::mt19937 random(seed);
  std::vector<Row> rows;
  for (int i = 0; i < count; ++i) {
    rows.push_back({RandomRow(&random, vocabulary, i % 2 == 0),
                    i % 5 == 0 ? SamplingParams{} : RandomSampling(&random, vocabulary)});
  }
  return rows;
}

std::vector<Row> OddRows() {
  std::vector<Row> rows;
  const std::vector<std::vector<float>> odd = {
      {kNan, 0, kNan, -kInf},       {1, kInf, kNan, -kInf},         {kInf, 3, kInf, kInf},
      {-kInf, -kInf, -kInf, -kInf}, {kNan, kNan, kNan, kNan},       {kNan, -kInf, -kInf, -kInf},
      {-0.0f, 0.0f, -0.0f, -1},     {1e30f, -1e30f, 3e38f, -3e38f}, {-kMax, -kMax, -kMax, -kMax},
      {kMax, -kMax, 0, kMax}};
  for (const SamplingParams& sampling :
       {SamplingParams{}, SamplingParams{.top_k = 2}, SamplingParams{.top_p = 0.9f},
        SamplingParams{.top_k = 2, .top_p = 0.6f, .min_p = 0.1f},
        SamplingParams{.top_k = 1, .top_p = 0.8f},
        SamplingParams{.temperature = 1e-38f, .top_p = 0.4f},
        SamplingParams{.temperature = 1e30f, .min_p = 0.9f}}) {
    for (const std::vector<float>& logits : odd) rows.push_back({logits, sampling});
  }
  return rows;
}

// The distance of the CPU's running sum from the top-p threshold, relative to the total.
double MarginOfTopP(const Row& row) {
  SamplingParams before = row.sampling;
  before.top_p = 1;
  before.min_p = 0;
  const std::vector<uint8_t> kept = sampling::FilterMask(row.logits, before);
  std::vector<double> masses;
  float max = -kInf;
  for (float logit : row.logits) max = logit > max ? logit : max;
  for (size_t x = 0; x < kept.size(); ++x) {
    if (kept[x] == 0 || std::isnan(row.logits[x])) continue;
    const double difference = static_cast<double>(row.logits[x]) - max;
    masses.push_back(row.logits[x] == max ? 1 : std::exp(difference / row.sampling.temperature));
  }
  std::sort(masses.rbegin(), masses.rend());
  double total = 0, sum = 0, margin = 1;
  for (double mass : masses) total += mass;
  for (double mass : masses) {
    sum += mass;
    margin = std::min(margin, std::abs(sum / total - row.sampling.top_p));
  }
  return margin;
}

// Whether both keep the same tokens; the logits are finite.
bool KeepsTheSame(const Row& row, const DeviceDistribution& distribution) {
  if (!base::AllFinite(row.logits)) return !distribution.filter.finite();
  const std::vector<uint8_t> kept = sampling::FilterMask(row.logits, row.sampling);
  for (size_t x = 0; x < kept.size(); ++x) {
    const float logit = row.logits[x];
    const bool here = !std::isnan(logit) &&
                      Pack(logit, static_cast<base::TokenId>(x)) >= distribution.filter.least;
    if (here != (kept[x] != 0)) return false;
  }
  return true;
}

// Expects the bits of the distribution that verification::RowDistribution opens, in all that is
// read of it.
void ExpectTheBits(const Row& row, const DeviceDistribution& distribution) {
  const int vocabulary = static_cast<int>(row.logits.size());
  verification::RowScratch scratch(vocabulary, base::BestIsa());
  verification::RowDistribution expected(&scratch);
  const bool finite = expected.Open(row.logits, row.sampling, /*keep=*/false);
  ASSERT_EQ(distribution.filter.finite(), finite);
  if (!finite) return;
  ASSERT_EQ(std::bit_cast<uint64_t>(distribution.totals.sum),
            std::bit_cast<uint64_t>(distribution.Total()));
  ASSERT_EQ(std::bit_cast<uint64_t>(distribution.InversePerplexity()),
            std::bit_cast<uint64_t>(expected.InversePerplexity()));
  for (int x = 0; x < vocabulary; ++x) {
    ASSERT_EQ(std::bit_cast<uint64_t>(Probability(row, distribution, x)),
              std::bit_cast<uint64_t>(expected.Probability(x)))
        << x;
  }
}

class RowDistributionTest : public DeviceTest {};

TEST_F(RowDistributionTest, HasTheBitsOfTheCpuOverWhatTheFiltersKeep) {
  int rows = 0, at_the_border = 0;
  for (int vocabulary : {1, 2, 7, 300, 1024, 1025, 5000}) {
    const std::vector<Row> batch = RandomRows(vocabulary, vocabulary, 60);
    const std::vector<DeviceDistribution> distributions = Distributions(batch);
    for (size_t i = 0; i < batch.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "vocabulary " << vocabulary << ", row " << i);
      ++rows;
      // The difference that the header allows.
      if (base::AllFinite(batch[i].logits) && !KeepsTheSame(batch[i], distributions[i]) &&
          MarginOfTopP(batch[i]) < vocabulary * 0x1p-40) {
        ++at_the_border;
        std::printf("at the border: temperature %g, top-k %d, top-p %g, row of %d\n",
                    batch[i].sampling.temperature, batch[i].sampling.top_k, batch[i].sampling.top_p,
                    vocabulary);
        continue;
      }
      ASSERT_TRUE(KeepsTheSame(batch[i], distributions[i]));
      ASSERT_NO_FATAL_FAILURE(ExpectTheBits(batch[i], distributions[i]));
    }
  }
  std::printf("rows: %d, tokens at the border of top-p that differ: %d\n", rows, at_the_border);
  EXPECT_LE(at_the_border, rows / 200);
}

TEST_F(RowDistributionTest, ManyRowsMatchTheCpu) {
  std::mt19937 random(9);
  std::vector<Row> batch;
  for (int i = 0; i < 513; ++i) batch.push_back({RandomRow(&random, 67, i % 2 == 0), {}});
  const std::vector<DeviceDistribution> distributions = Distributions(batch);
  for (size_t i = 0; i < batch.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_NO_FATAL_FAILURE(ExpectTheBits(batch[i], distributions[i]));
  }
}

// Every chunk's logits are so much larger than those before that it needs a reference of its own.
TEST_F(RowDistributionTest, RisingRowsMatchTheCpu) {
  std::vector<Row> batch;
  for (const float rise : {0.001f, 0.05f, -0.05f, 1.0f}) {
    std::vector<float> logits(9 * kRowChunk + 77);
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = rise * static_cast<float>(i);
    batch.push_back({logits, {}});
    batch.push_back({logits, {.temperature = 2.0f, .top_k = 5000}});
  }
  const std::vector<DeviceDistribution> distributions = Distributions(batch);
  for (size_t i = 0; i < batch.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(KeepsTheSame(batch[i], distributions[i]));
    ASSERT_NO_FATAL_FAILURE(ExpectTheBits(batch[i], distributions[i]));
  }
}

TEST_F(RowDistributionTest, OddRowsMatchTheCpu) {
  const std::vector<Row> batch = OddRows();
  const std::vector<DeviceDistribution> distributions = Distributions(batch);
  for (size_t i = 0; i < batch.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(KeepsTheSame(batch[i], distributions[i]));
    ASSERT_NO_FATAL_FAILURE(ExpectTheBits(batch[i], distributions[i]));
  }
}

}  // namespace
}  // namespace specfabric::verification::cuda
