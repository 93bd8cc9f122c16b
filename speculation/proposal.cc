#include "speculation/proposal.h"

#include <algorithm>
#include <cassert>

#include "base/bfloat16.h"
#include "base/exp.h"
#include "base/isa.h"
#include "speculation/sampling.h"

namespace specfabric::speculation {
namespace {

constexpr uint16_t kOne = kLargestWeight;

void KeepHeaviest(int top_n, absl::Span<uint16_t> weights) {
  // Positive bfloat16 numbers are ordered as their bits are, and there are few: count each.
  std::vector<int32_t> count(kOne + 1, 0);
  for (uint16_t weight : weights) ++count[weight];
  int32_t left = top_n;
  uint16_t least = kOne;
  while (least > 0 && count[least] <= left) left -= count[least--];
  // Of the lightest that is kept, `left` tokens stay.
  for (uint16_t& weight : weights) {
    if (weight > least) continue;
    if (weight < least || left-- <= 0) weight = 0;
  }
}

// Weights are summed by id modulo kSums, and then these sums, whatever the instructions.
constexpr size_t kSums = kWeightSums;

double SumOfLanes(const double* sums) {
  double total = 0;
  for (size_t lane = 0; lane < kSums; ++lane) total += sums[lane];
  return total;
}

SPECFABRIC_ALWAYS_INLINE double TotalBody(const uint16_t* weights, size_t n) {
  double sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (size_t lane = 0; lane < kSums; ++lane) {
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

SPECFABRIC_ALWAYS_INLINE void WeighBody(const float* __restrict logits, size_t n, float best,
                                        base::ExpScale scale, uint16_t* __restrict weights) {
  for (size_t i = 0; i < n; ++i) {
    weights[i] = RoundWeight(base::ExpWeight(logits[i], best, scale));
  }
}
void WeighPortable(const float* logits, size_t n, float best, base::ExpScale scale,
                   uint16_t* weights) {
  WeighBody(logits, n, best, scale, weights);
}
SPECFABRIC_TARGET_AVX2 void WeighAvx2(const float* logits, size_t n, float best,
                                      base::ExpScale scale, uint16_t* weights) {
  WeighBody(logits, n, best, scale, weights);
}
SPECFABRIC_TARGET_AVX512 void WeighAvx512(const float* logits, size_t n, float best,
                                          base::ExpScale scale, uint16_t* weights) {
  WeighBody(logits, n, best, scale, weights);
}

// best: the largest logit, finite.
void WeighRow(absl::Span<const float> logits, float best, base::ExpScale scale,
              absl::Span<uint16_t> weights) {
  switch (base::BestIsa()) {
    case base::Isa::kAvx512:
      return WeighAvx512(logits.data(), logits.size(), best, scale, weights.data());
    case base::Isa::kAvx2:
      return WeighAvx2(logits.data(), logits.size(), best, scale, weights.data());
    case base::Isa::kPortable:
      return WeighPortable(logits.data(), logits.size(), best, scale, weights.data());
  }
}

}  // namespace

void MakeWeights(absl::Span<const float> logits, const base::SamplingParams& sampling, int top_n,
                 absl::Span<uint16_t> weights) {
  assert(!logits.empty() && weights.size() == logits.size());
  std::fill(weights.begin(), weights.end(), uint16_t{0});
  const ScoredToken best = PerturbedArgMax(logits, {}, 0.0f, 0);
  if (best.score == kNotFinite) return;
  if (sampling.greedy()) {
    weights[best.token] = kOne;
    return;
  }
  WeighRow(logits, best.score, base::ScaleFor(sampling.temperature), weights);
  if (sampling.filtered()) {
    const std::vector<uint8_t> kept = FilterMask(logits, sampling);
    for (size_t token = 0; token < kept.size(); ++token) {
      if (kept[token] == 0) weights[token] = 0;
    }
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
  double sums[kSums] = {};
  for (size_t i = 0; i < ids.size(); ++i) {
    sums[static_cast<size_t>(ids[i]) % kSums] += base::WidenBFloat16(weights[i]);
  }
  return SumOfLanes(sums);
}

WeightRowFacts FactsOf(absl::Span<const uint16_t> weights, absl::Span<const base::TokenId> ids,
                       int32_t vocabulary) {
  WeightRowFacts facts;
  for (uint16_t weight : weights) facts.highest = std::max(facts.highest, weight);
  for (size_t i = 0; i < ids.size(); ++i) {
    const base::TokenId previous = i == 0 ? -1 : ids[i - 1];
    if (ids[i] > previous && ids[i] < vocabulary) continue;
    facts.misplaced = static_cast<int32_t>(i);
    facts.id = ids[i];
    facts.previous = previous;
    return facts;  // what the ids are is not known
  }
  facts.total = TotalWeight(weights, ids);
  return facts;
}

Distribution Probabilities(absl::Span<const uint16_t> weights) {
  std::vector<double> widened;
  widened.reserve(weights.size());
  for (uint16_t weight : weights) widened.push_back(base::WidenBFloat16(weight));
  return Normalized(widened);
}

namespace {

// Draws from weights by the sums of runs of them, so that a draw reads one run alone.
class Drawer {
 public:
  explicit Drawer(absl::Span<uint16_t> weights) : weights_(weights) {
    for (size_t first = 0; first < weights.size(); first += kRun) {
      sums_.push_back(TotalWeight(Run(sums_.size())));
    }
  }

  // The token at which the running sum, in order of ids, passes `uniform` of the whole; kNoToken:
  // nothing is left.
  base::TokenId Draw(double uniform) const {
    double total = 0;
    for (double sum : sums_) total += sum;
    const double wanted = uniform * total;
    double before = 0;
    size_t run = sums_.size();
    for (size_t i = 0; i < sums_.size(); ++i) {
      if (sums_[i] == 0) continue;
      // Rounding may carry `wanted` past the end: then it is the last run that has something.
      if (run < sums_.size()) before += sums_[run];
      run = i;
      if (before + sums_[i] > wanted) break;
    }
    if (run == sums_.size()) return base::kNoToken;
    const base::TokenId token = TokenAt(Run(run), wanted - before, base::WidenBFloat16);
    return static_cast<base::TokenId>(run * kRun) + token;
  }

  void Remove(base::TokenId token) {
    weights_[token] = 0;
    sums_[token / kRun] = TotalWeight(Run(token / kRun));
  }

 private:
  static constexpr size_t kRun = kWeightRun;
  absl::Span<const uint16_t> Run(size_t run) const { return weights_.subspan(run * kRun, kRun); }

  absl::Span<uint16_t> weights_;
  std::vector<double> sums_;
};

}  // namespace

std::vector<base::TokenId> DrawWithReplacement(absl::Span<const uint16_t> weights, int count,
                                               uint64_t seed, const base::DrawSite& site) {
  std::vector<uint16_t> copy(weights.begin(), weights.end());
  const Drawer drawer(absl::MakeSpan(copy));
  std::vector<base::TokenId> drawn;
  for (int i = 0; i < count; ++i) {
    drawn.push_back(drawer.Draw(SiblingUniform(seed, site, i)));
    if (drawn.back() == base::kNoToken) return {};
  }
  return drawn;
}

std::vector<base::TokenId> DrawWithoutReplacement(absl::Span<const uint16_t> weights, int count,
                                                  uint64_t seed, const base::DrawSite& site) {
  std::vector<uint16_t> left(weights.begin(), weights.end());
  Drawer drawer(absl::MakeSpan(left));
  std::vector<base::TokenId> drawn;
  for (int i = 0; i < count; ++i) {
    const base::TokenId token = drawer.Draw(SiblingUniform(seed, site, i));
    if (token == base::kNoToken) break;
    drawn.push_back(token);
    drawer.Remove(token);
  }
  return drawn;
}

}  // namespace specfabric::speculation
