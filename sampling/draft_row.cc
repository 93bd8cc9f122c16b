#include "sampling/draft_row.h"

#include <algorithm>
#include <cassert>

#include "base/bfloat16.h"
#include "base/exp.h"
#include "base/isa.h"
#include "sampling/sampling.h"

namespace specfabric::sampling {
namespace {

constexpr uint16_t kOne = kLargestProb;

void KeepLikeliest(int top_n, absl::Span<uint16_t> probs) {
  // Positive bfloat16 numbers are ordered as their bits are, and there are few: count each.
  std::vector<int32_t> count(kOne + 1, 0);
  for (uint16_t prob : probs) ++count[prob];
  int32_t left = top_n;
  uint16_t least = kOne;
  while (least > 0 && count[least] <= left) left -= count[least--];
  // Of the smallest value that is kept, `left` tokens stay.
  for (uint16_t& prob : probs) {
    if (prob > least) continue;
    if (prob < least || left-- <= 0) prob = 0;
  }
}

// Entries are summed by id modulo kSums, then these sums: the same order for every instruction set.
constexpr size_t kSums = kProbSums;

double SumOfLanes(const double* sums) {
  double total = 0;
  for (size_t lane = 0; lane < kSums; ++lane) total += sums[lane];
  return total;
}

SPECFABRIC_ALWAYS_INLINE double TotalBody(const uint16_t* probs, size_t n) {
  double sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (size_t lane = 0; lane < kSums; ++lane) {
      sums[lane] += base::WidenBFloat16(probs[i + lane]);
    }
  }
  for (size_t lane = 0; i + lane < n; ++lane) sums[lane] += base::WidenBFloat16(probs[i + lane]);
  return SumOfLanes(sums);
}
double TotalPortable(const uint16_t* probs, size_t n) { return TotalBody(probs, n); }
SPECFABRIC_TARGET_AVX2 double TotalAvx2(const uint16_t* probs, size_t n) {
  return TotalBody(probs, n);
}
SPECFABRIC_TARGET_AVX512 double TotalAvx512(const uint16_t* probs, size_t n) {
  return TotalBody(probs, n);
}

SPECFABRIC_ALWAYS_INLINE void ExpBody(const float* __restrict logits, size_t n, float best,
                                      base::ExpScale scale, uint16_t* __restrict probs) {
  for (size_t i = 0; i < n; ++i) {
    probs[i] = RoundProb(base::ScaledExp(logits[i], best, scale));
  }
}
void ExpPortable(const float* logits, size_t n, float best, base::ExpScale scale, uint16_t* probs) {
  ExpBody(logits, n, best, scale, probs);
}
SPECFABRIC_TARGET_AVX2 void ExpAvx2(const float* logits, size_t n, float best, base::ExpScale scale,
                                    uint16_t* probs) {
  ExpBody(logits, n, best, scale, probs);
}
SPECFABRIC_TARGET_AVX512 void ExpAvx512(const float* logits, size_t n, float best,
                                        base::ExpScale scale, uint16_t* probs) {
  ExpBody(logits, n, best, scale, probs);
}

// best: the largest logit, finite.
void ExpRow(absl::Span<const float> logits, float best, base::ExpScale scale,
            absl::Span<uint16_t> probs) {
  switch (base::BestIsa()) {
    case base::Isa::kAvx512:
      return ExpAvx512(logits.data(), logits.size(), best, scale, probs.data());
    case base::Isa::kAvx2:
      return ExpAvx2(logits.data(), logits.size(), best, scale, probs.data());
    case base::Isa::kPortable:
      return ExpPortable(logits.data(), logits.size(), best, scale, probs.data());
  }
}

}  // namespace

void MakeDraftProbs(absl::Span<const float> logits, const base::SamplingParams& sampling, int top_n,
                    absl::Span<uint16_t> probs) {
  assert(!logits.empty() && probs.size() == logits.size());
  std::fill(probs.begin(), probs.end(), uint16_t{0});
  const ScoredToken best = PerturbedArgMax(logits, {}, 0.0f, 0);
  if (best.score == kNotFinite) return;
  if (sampling.greedy()) {
    probs[best.token] = kOne;
    return;
  }
  ExpRow(logits, best.score, base::ScaleFor(sampling.temperature), probs);
  if (sampling.filtered()) {
    const std::vector<uint8_t> kept = FilterMask(logits, sampling);
    for (size_t token = 0; token < kept.size(); ++token) {
      if (kept[token] == 0) probs[token] = 0;
    }
  }
  if (top_n > 0) KeepLikeliest(top_n, probs);
}

double TotalProb(absl::Span<const uint16_t> probs) {
  switch (base::BestIsa()) {
    case base::Isa::kAvx512:
      return TotalAvx512(probs.data(), probs.size());
    case base::Isa::kAvx2:
      return TotalAvx2(probs.data(), probs.size());
    case base::Isa::kPortable:
      break;
  }
  return TotalPortable(probs.data(), probs.size());
}

double TotalProb(absl::Span<const uint16_t> probs, absl::Span<const base::TokenId> ids) {
  if (ids.empty()) return TotalProb(probs);
  double sums[kSums] = {};
  for (size_t i = 0; i < ids.size(); ++i) {
    sums[static_cast<size_t>(ids[i]) % kSums] += base::WidenBFloat16(probs[i]);
  }
  return SumOfLanes(sums);
}

DraftRowFacts FactsOf(absl::Span<const uint16_t> probs, absl::Span<const base::TokenId> ids,
                      int32_t vocabulary) {
  DraftRowFacts facts;
  for (uint16_t prob : probs) facts.highest = std::max(facts.highest, prob);
  for (size_t i = 0; i < ids.size(); ++i) {
    const base::TokenId previous = i == 0 ? -1 : ids[i - 1];
    if (ids[i] > previous && ids[i] < vocabulary) continue;
    facts.misplaced = static_cast<int32_t>(i);
    facts.id = ids[i];
    facts.previous = previous;
    return facts;  // what the ids are is not known
  }
  facts.total = TotalProb(probs, ids);
  return facts;
}

Distribution Probabilities(absl::Span<const uint16_t> probs) {
  std::vector<double> widened;
  widened.reserve(probs.size());
  for (uint16_t prob : probs) widened.push_back(base::WidenBFloat16(prob));
  return Normalized(widened);
}

namespace {

// Draws with the help of sums of runs of entries, so that a draw reads a single run.
class Drawer {
 public:
  explicit Drawer(absl::Span<uint16_t> probs) : probs_(probs) {
    for (size_t first = 0; first < probs.size(); first += kRun) {
      sums_.push_back(TotalProb(Run(sums_.size())));
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
    probs_[token] = 0;
    sums_[token / kRun] = TotalProb(Run(token / kRun));
  }

 private:
  static constexpr size_t kRun = kProbRun;
  absl::Span<const uint16_t> Run(size_t run) const { return probs_.subspan(run * kRun, kRun); }

  absl::Span<uint16_t> probs_;
  std::vector<double> sums_;
};

}  // namespace

std::vector<base::TokenId> DrawWithReplacement(absl::Span<const uint16_t> probs, int count,
                                               uint64_t seed, const DrawSite& site) {
  std::vector<uint16_t> copy(probs.begin(), probs.end());
  const Drawer drawer(absl::MakeSpan(copy));
  std::vector<base::TokenId> drawn;
  for (int i = 0; i < count; ++i) {
    drawn.push_back(drawer.Draw(SiblingUniform(seed, site, i)));
    if (drawn.back() == base::kNoToken) return {};
  }
  return drawn;
}

std::vector<base::TokenId> DrawWithoutReplacement(absl::Span<const uint16_t> probs, int count,
                                                  uint64_t seed, const DrawSite& site) {
  std::vector<uint16_t> left(probs.begin(), probs.end());
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

}  // namespace specfabric::sampling
