// Filters on a whole row, sampling from what they keep, and log-probabilities.

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/finite.h"
#include "sampling/sampling.h"

namespace specfabric::sampling {
namespace {

// Up to this k the candidates are found without a copy of the row.
constexpr int kSmallTopK = 1024;

bool ById(const ScoredToken& a, const ScoredToken& b) { return a.token < b.token; }

// All tokens of the row, with the plain logits; none where one is not finite.
void AllTokens(absl::Span<const float> logits, std::vector<ScoredToken>* tokens) {
  tokens->clear();
  tokens->reserve(logits.size());
  uint32_t largest = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    largest = std::max(largest, base::Magnitude(logits[i]));
    tokens->push_back({static_cast<base::TokenId>(i), logits[i]});
  }
  if (largest >= base::kLeastNotFinite) tokens->clear();
}

// The tokens that top-k leaves, ascending by id; none where a logit is not finite.
void TopK(absl::Span<const float> logits, int k, std::vector<ScoredToken>* kept) {
  const bool all = k <= 0 || k >= static_cast<int>(logits.size());
  if (!all && k <= kSmallTopK) {
    bool finite = true;
    PerturbedTopK(logits, {}, 0.0f, k, kept, &finite);
    if (!finite) kept->clear();
    std::sort(kept->begin(), kept->end(), ById);
    return;
  }
  AllTokens(logits, kept);
  if (!all && k < static_cast<int>(kept->size())) {
    std::nth_element(kept->begin(), kept->begin() + k, kept->end(), Better);
    kept->resize(k);
    std::sort(kept->begin(), kept->end(), ById);
  }
}

// exp((logit - max) / T), the token's probability up to a common factor.
double Mass(float logit, float max, double temperature) {
  return std::exp((static_cast<double>(logit) - max) / temperature);
}

// Reduces `kept` (ascending by id) to the smallest prefix, most likely first, whose share of the
// mass reaches top_p. Only as much of the row is sorted as the prefix needs.
void TopP(float top_p, float max, double temperature, std::vector<ScoredToken>* kept) {
  double total = 0;
  for (const ScoredToken& token : *kept) total += Mass(token.score, max, temperature);
  const double wanted = static_cast<double>(top_p) * total;
  double sum = 0;
  size_t size = 0;
  for (size_t sorted = 0, step = 256; sorted < kept->size(); step *= 4) {
    const size_t end = std::min(sorted + step, kept->size());
    if (end < kept->size()) {
      std::nth_element(kept->begin() + sorted, kept->begin() + end, kept->end(), Better);
    }
    std::sort(kept->begin() + sorted, kept->begin() + end, Better);
    for (; size < end; ++size) {
      if (size > 0 && sum >= wanted) {
        kept->resize(size);
        return;
      }
      sum += Mass((*kept)[size].score, max, temperature);
    }
    sorted = end;
  }
}

}  // namespace

void KeptTokens(absl::Span<const float> logits, const base::SamplingParams& sampling,
                std::vector<ScoredToken>* kept) {
  if (sampling.greedy()) {
    const ScoredToken best = PerturbedArgMax(logits, {}, 0.0f, 0);
    kept->clear();
    if (best.score != kNotFinite) kept->push_back(best);
    return;
  }
  TopK(logits, sampling.top_k, kept);
  if (kept->empty()) return;
  const double temperature = sampling.temperature;
  const float max = std::min_element(kept->begin(), kept->end(), Better)->score;
  if (sampling.top_p < 1.0f) TopP(sampling.top_p, max, temperature, kept);
  if (sampling.min_p > 0.0f) {
    std::erase_if(*kept, [&](const ScoredToken& token) {
      return Mass(token.score, max, temperature) < static_cast<double>(sampling.min_p);
    });
  }
}

std::vector<uint8_t> FilterMask(absl::Span<const float> logits,
                                const base::SamplingParams& sampling) {
  std::vector<uint8_t> mask(logits.size(), 0);
  if (logits.empty()) return mask;
  std::vector<ScoredToken> kept;
  KeptTokens(logits, sampling, &kept);
  for (const ScoredToken& token : kept) mask[token.token] = 1;
  return mask;
}

base::TokenId SampleRow(absl::Span<const float> logits, absl::Span<const float> noise,
                        const base::SamplingParams& sampling, std::vector<ScoredToken>* scratch) {
  if (sampling.greedy() || !sampling.filtered()) {
    const ScoredToken best = PerturbedArgMax(logits, noise, sampling.temperature, 0);
    return best.score == kNotFinite ? base::kNoToken : best.token;
  }
  assert(noise.size() == logits.size());
  ScoredToken winner;
  KeptTokens(logits, sampling, scratch);
  for (const ScoredToken& token : *scratch) {
    const ScoredToken candidate{
        token.token, std::fma(sampling.temperature, noise[token.token], logits[token.token])};
    if (Better(candidate, winner)) winner = candidate;
  }
  return winner.token;
}

base::TokenId SampleRow(absl::Span<const float> logits, absl::Span<const float> noise,
                        const base::SamplingParams& sampling) {
  std::vector<ScoredToken> scratch;
  return SampleRow(logits, noise, sampling, &scratch);
}

base::TokenLogprobs RowLogprobs(absl::Span<const float> logits, base::TokenId token, int top) {
  assert(token >= 0 && token < static_cast<int>(logits.size()));
  const float max = PerturbedArgMax(logits, {}, 0.0f, 0).score;
  if (max == kNotFinite) return {};
  double sum = 0;
  for (float logit : logits) sum += Mass(logit, max, 1.0);
  const double log_sum = std::log(sum);
  const auto logprob = [&](float logit) {
    constexpr double kLowest = std::numeric_limits<float>::lowest();
    if (logit == max) return static_cast<float>(-log_sum);
    return static_cast<float>(std::max(kLowest, static_cast<double>(logit) - max - log_sum));
  };
  base::TokenLogprobs result{.token = token, .logprob = logprob(logits[token]), .top = {}};
  for (const ScoredToken& best : PerturbedTopK(logits, {}, 0.0f, top)) {
    result.top.emplace_back(best.token, logprob(best.score));
  }
  return result;
}

}  // namespace specfabric::sampling
