// The device's filters and distributions against sampling::FilterMask and
// verification::RowDistribution.

#include "verification/cuda/row_distribution.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "sampling/sampling.h"
#include "tests/cuda/device.h"
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
  std::vector<float> values = {};
  std::vector<DistributionChunk> chunks = {};

  double Total() const {
    double total = 0;
    for (const DistributionChunk& chunk : chunks) total += chunk.sum;
    return total;
  }
  double Probability(int token) const {
    return values[token] * chunks[token / kRowChunk].factor / Total();
  }
  double InversePerplexity() const {
    double sum = 0;
    for (const DistributionChunk& chunk : chunks) sum += chunk.power_sum;
    return verification::InversePerplexity(Total(), sum);
  }
};

struct Row {
  std::vector<float> logits = {};
  SamplingParams sampling = {};
};

// All of one vocabulary.
std::vector<DeviceDistribution> Distributions(const std::vector<Row>& rows) {
  const int32_t count = static_cast<int32_t>(rows.size());
  const int32_t vocabulary = static_cast<int32_t>(rows[0].logits.size());
  const int32_t chunks = (vocabulary + kRowChunk - 1) / kRowChunk;
  const size_t parts = size_t(count) * chunks;
  std::vector<int32_t> begin = {0};
  std::vector<TreeRound> rounds;
  std::vector<float> logits;
  for (const Row& row : rows) {
    rounds.push_back({.verification = speculation::VerificationMethod::kTypical,
                      .sampling = row.sampling,
                      .first_logit = begin.back()});
    begin.push_back(begin.back() + 1);
    logits.insert(logits.end(), row.logits.begin(), row.logits.end());
  }
  DeviceArray<int32_t> d_begin(begin);
  DeviceArray<TreeRound> d_rounds(rounds);
  DeviceArray<float> d_logits(logits), d_values(parts * kRowChunk);
  DeviceArray<DistributionChunk> d_chunks(parts);
  DeviceArray<PackedChoice> d_bests(parts);
  DeviceArray<RowFilter> d_filters(count);
  const RoundBatch batch = {.trees = {.sequences = count, .begin = d_begin.data()},
                            .rounds = d_rounds.data(),
                            .nodes = count,
                            .logits = d_logits.data(),
                            .stride = vocabulary,
                            .vocabulary = vocabulary};
  const RowDistributions distributions = {
      .chunks = chunks,
      .values = d_values.data(),
      .distribution_chunks = d_chunks.data(),
      .filters = {.chunks = chunks, .bests = d_bests.data(), .of_node = d_filters.data()}};
  EXPECT_EQ(EnqueueRowDistributions(batch, distributions, nullptr), absl::OkStatus());
  const std::vector<float> values = d_values.Read();
  const std::vector<DistributionChunk> distribution_chunks = d_chunks.Read();
  const std::vector<RowFilter> filters = d_filters.Read();
  std::vector<DeviceDistribution> result;
  for (int32_t i = 0; i < count; ++i) {
    const auto first = distribution_chunks.begin() + i * chunks;
    const auto first_value = values.begin() + int64_t{i} * chunks * kRowChunk;
    result.push_back({filters[i],
                      {first_value, first_value + int64_t{chunks} * kRowChunk},
                      {first, first + chunks}});
  }
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
  ASSERT_EQ(std::bit_cast<uint64_t>(distribution.InversePerplexity()),
            std::bit_cast<uint64_t>(expected.InversePerplexity()));
  for (int x = 0; x < vocabulary; ++x) {
    ASSERT_EQ(std::bit_cast<uint64_t>(distribution.Probability(x)),
              std::bit_cast<uint64_t>(expected.Probability(x)))
        << x;
  }
  for (size_t x = vocabulary; x < distribution.values.size(); ++x)
    ASSERT_EQ(distribution.values[x], 0);
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
