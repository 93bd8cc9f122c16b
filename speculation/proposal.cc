#include "speculation/proposal.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "base/bfloat16.h"
#include "base/isa.h"
#include "speculation/randomness.h"
#include "speculation/sampling.h"

namespace specfabric::speculation {
namespace {

base::TokenId DrawAt(absl::Span<const uint16_t> weights, double wanted) {
  return TokenAt(weights, wanted, base::WidenBFloat16);
}

double Uniform(uint64_t seed, const base::DrawSite& site, uint32_t sibling) {
  return UniformFromWords(base::PhiloxWord(seed, site, 2 * sibling),
                          base::PhiloxWord(seed, site, 2 * sibling + 1));
}

void KeepHeaviest(int top_n, absl::Span<uint16_t> weights) {
  // Positive bfloat16 numbers are ordered as their bits are.
  std::vector<base::TokenId> order;
  for (size_t token = 0; token < weights.size(); ++token) {
    if (weights[token] != 0) order.push_back(static_cast<base::TokenId>(token));
  }
  if (order.size() <= static_cast<size_t>(top_n)) return;
  const auto heavier = [&](base::TokenId a, base::TokenId b) {
    return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
  };
  std::nth_element(order.begin(), order.begin() + top_n, order.end(), heavier);
  for (auto token = order.begin() + top_n; token != order.end(); ++token) weights[*token] = 0;
}

// Weights are summed by id modulo kLanes, and then these sums, whatever the instructions.
constexpr size_t kLanes = 128;

double SumOfLanes(const double* sums) {
  double total = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) total += sums[lane];
  return total;
}

SPECFABRIC_ALWAYS_INLINE double TotalBody(const uint16_t* weights, size_t n) {
  double sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += base::WidenBFloat16(weights[i + lane]);
    }
  }
  for (size_t lane = 0; i + lane < n; ++lane) sums[lane] += base::WidenBFloat16(weights[i + lane]);
  return SumOfLanes(sums);
}
double TotalPortable(const uint16_t* weights, size_t n) { return TotalBody(weights, n); }
SPECFABRIC_TARGET_AVX2 double TotalAvx2(const uint16_t* weights, size_t n) {
  return TotalBody(weights, n);
}
SPECFABRIC_TARGET_AVX512 double TotalAvx512(const uint16_t* weights, size_t n) {
  return TotalBody(weights, n);
}

}  // namespace

void MakeWeights(absl::Span<const float> logits, const base::SamplingParams& sampling, int top_n,
                 absl::Span<uint16_t> weights) {
  assert(!logits.empty() && weights.size() == logits.size());
  std::fill(weights.begin(), weights.end(), uint16_t{0});
  const ScoredToken best = PerturbedArgMax(logits, {}, 0.0f, 0);
  if (best.token == base::kNoToken) return;
  if (sampling.greedy()) {
    weights[best.token] = base::RoundToBFloat16(1.0f);
    return;
  }
  const auto weigh = [&](size_t token) {
    // Not a number compares false, and has no weight.
    if (!(logits[token] <= best.score)) return;
    // Equal ones first: the difference of two infinities is no number.
    const float weight = logits[token] == best.score
                             ? 1.0f
                             : std::exp((logits[token] - best.score) / sampling.temperature);
    weights[token] = base::RoundToBFloat16(weight);
  };
  if (sampling.filtered()) {
    const std::vector<uint8_t> kept = FilterMask(logits, sampling);
    for (size_t token = 0; token < kept.size(); ++token) {
      if (kept[token] != 0) weigh(token);
    }
  } else {
    for (size_t token = 0; token < logits.size(); ++token) weigh(token);
  }
  if (top_n > 0) KeepHeaviest(top_n, weights);
}

double TotalWeight(absl::Span<const uint16_t> weights) {
  switch (base::BestIsa()) {
    case base::Isa::kAvx512:
      return TotalAvx512(weights.data(), weights.size());
    case base::Isa::kAvx2:
      return TotalAvx2(weights.data(), weights.size());
    case base::Isa::kPortable:
      break;
  }
  return TotalPortable(weights.data(), weights.size());
}

double TotalWeight(absl::Span<const uint16_t> weights, absl::Span<const base::TokenId> ids) {
  if (ids.empty()) return TotalWeight(weights);
  double sums[kLanes] = {};
  for (size_t i = 0; i < ids.size(); ++i) {
    sums[static_cast<size_t>(ids[i]) % kLanes] += base::WidenBFloat16(weights[i]);
  }
  return SumOfLanes(sums);
}

Distribution Probabilities(absl::Span<const uint16_t> weights) {
  std::vector<double> widened;
  widened.reserve(weights.size());
  for (uint16_t weight : weights) widened.push_back(base::WidenBFloat16(weight));
  return Normalized(widened);
}

std::vector<base::TokenId> DrawWithReplacement(absl::Span<const uint16_t> weights, int count,
                                               uint64_t seed, const base::DrawSite& site) {
  const double total = TotalWeight(weights);
  std::vector<base::TokenId> drawn;
  for (int i = 0; i < count && total > 0; ++i) {
    drawn.push_back(DrawAt(weights, Uniform(seed, site, i) * total));
  }
  return drawn;
}

std::vector<base::TokenId> DrawWithoutReplacement(absl::Span<const uint16_t> weights, int count,
                                                  uint64_t seed, const base::DrawSite& site) {
  std::vector<uint16_t> left(weights.begin(), weights.end());
  std::vector<base::TokenId> drawn;
  for (int i = 0; i < count; ++i) {
    const double total = TotalWeight(left);
    if (total <= 0) break;
    drawn.push_back(DrawAt(left, Uniform(seed, site, i) * total));
    left[drawn.back()] = 0;
  }
  return drawn;
}

}  // namespace specfabric::speculation
