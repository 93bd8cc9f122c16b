// The hot loops over a shard of the vocabulary: scores, their arg-max and their k best.

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <limits>

#include "base/finite.h"
#include "base/isa.h"
#include "sampling/gumbel.h"
#include "sampling/sampling.h"

namespace specfabric::sampling {
namespace {

constexpr float kNoScore = -std::numeric_limits<float>::infinity();
constexpr int kLine = 16;               // floats of a cache line
constexpr int kScoreLanes = 4 * kLine;  // so that several comparisons are under way
constexpr int kScoresAtOnce = 1024;     // scores at a time: stay in the first-level cache

// The largest of logits[i] + temperature * noise[i], or of the logits alone; kNotFinite where one
// of the logits is not finite.
template <bool kNoisy>
SPECFABRIC_ALWAYS_INLINE float BestScoreBody(const float* logits, const float* noise,
                                             float temperature, int n) {
  const auto score = [=](int i) __attribute__((always_inline)) {
    return kNoisy ? std::fma(temperature, noise[i], logits[i]) : logits[i];
  };
  float best[kScoreLanes];
  uint32_t largest[kScoreLanes];
  for (int lane = 0; lane < kScoreLanes; ++lane) {
    best[lane] = kNoScore;
    largest[lane] = 0;
  }
  int i = 0;
  for (; i + kScoreLanes <= n; i += kScoreLanes) {
    for (int lane = 0; lane < kScoreLanes; lane += kLine) {
      base::PrefetchAhead(logits + i + lane, kScoresAtOnce * sizeof(float));
    }
    for (int lane = 0; lane < kScoreLanes; ++lane) {
      const float candidate = score(i + lane);
      best[lane] = candidate > best[lane] ? candidate : best[lane];
      largest[lane] = std::max(largest[lane], base::Magnitude(logits[i + lane]));
    }
  }
  for (; i < n; ++i) {
    best[0] = score(i) > best[0] ? score(i) : best[0];
    largest[0] = std::max(largest[0], base::Magnitude(logits[i]));
  }
  const bool finite = *std::max_element(largest, largest + kScoreLanes) < base::kLeastNotFinite;
  return finite ? *std::max_element(best, best + kScoreLanes) : kNotFinite;
}

// scores[i] = logits[i] + temperature * noise[i].
SPECFABRIC_ALWAYS_INLINE void ScoresBody(const float* __restrict logits,
                                         const float* __restrict noise, float temperature, int n,
                                         float* __restrict scores) {
  for (int i = 0; i < n; ++i) scores[i] = std::fma(temperature, noise[i], logits[i]);
}

struct Kernels {
  float (*best_logit)(const float* logits, const float* noise, float temperature, int n);
  float (*best_score)(const float* logits, const float* noise, float temperature, int n);
  void (*scores)(const float* logits, const float* noise, float temperature, int n, float* scores);
};
#define SPECFABRIC_KERNELS(name, attribute)                                                      \
  struct name {                                                                                  \
    attribute static float BestLogit(const float* logits, const float* noise, float temperature, \
                                     int n) {                                                    \
      return BestScoreBody<false>(logits, noise, temperature, n);                                \
    }                                                                                            \
    attribute static float BestScore(const float* logits, const float* noise, float temperature, \
                                     int n) {                                                    \
      return BestScoreBody<true>(logits, noise, temperature, n);                                 \
    }                                                                                            \
    attribute static void Scores(const float* logits, const float* noise, float temperature,     \
                                 int n, float* scores) {                                         \
      ScoresBody(logits, noise, temperature, n, scores);                                         \
    }                                                                                            \
    static constexpr Kernels kAll = {BestLogit, BestScore, Scores};                              \
  };
SPECFABRIC_KERNELS(Portable, )
SPECFABRIC_KERNELS(Avx2, SPECFABRIC_TARGET_AVX2)
SPECFABRIC_KERNELS(Avx512, SPECFABRIC_TARGET_AVX512)
#undef SPECFABRIC_KERNELS

const Kernels& BestKernels() {
  switch (base::BestIsa()) {
    case base::Isa::kAvx512:
      return Avx512::kAll;
    case base::Isa::kAvx2:
      return Avx2::kAll;
    case base::Isa::kPortable:
      break;
  }
  return Portable::kAll;
}

// Calls visit(scores of a chunk, index of its first, its largest score) for the chunks, in order,
// for which wanted(their largest score).
template <typename Wanted, typename Visit>
void ForEachChunk(absl::Span<const float> logits, absl::Span<const float> noise, float temperature,
                  Wanted wanted, Visit visit) {
  const bool greedy = temperature == 0.0f;
  assert(greedy || noise.size() == logits.size());
  static const Kernels& kernels = BestKernels();
  std::array<float, kScoresAtOnce> scores;
  const int size = static_cast<int>(logits.size());
  for (int begin = 0; begin < size; begin += kScoresAtOnce) {
    const int n = std::min(kScoresAtOnce, size - begin);
    const float* const chunk = logits.data() + begin;
    const float* const chunk_noise = greedy ? nullptr : noise.data() + begin;
    const auto best_of = greedy ? kernels.best_logit : kernels.best_score;
    const float best = best_of(chunk, chunk_noise, temperature, n);
    if (!wanted(best)) continue;
    if (greedy) {
      visit(absl::MakeConstSpan(chunk, n), begin, best);
    } else {
      kernels.scores(chunk, chunk_noise, temperature, n, scores.data());
      visit(absl::MakeConstSpan(scores.data(), n), begin, best);
    }
  }
}

}  // namespace

ScoredToken PerturbedArgMax(absl::Span<const float> logits, absl::Span<const float> noise,
                            float temperature, int32_t first) {
  if (logits.empty()) return {};
  ScoredToken winner{first, kNoScore};
  ForEachChunk(
      logits, noise, temperature, [&](float best) { return best > winner.score; },
      [&](absl::Span<const float> scores, int begin, float best) {
        const auto chunk = logits.subspan(begin, scores.size());
        const auto bad = best == kNotFinite
                             ? std::find_if_not(chunk.begin(), chunk.end(), base::IsFinite)
                             : chunk.end();
        // Finite logits score kNotFinite only where the temperature is beyond all use.
        const auto at = bad != chunk.end()
                            ? bad - chunk.begin()
                            : std::find(scores.begin(), scores.end(), best) - scores.begin();
        winner = {first + begin + static_cast<int32_t>(at), best};
      });
  return winner;
}

std::vector<ScoredToken> PerturbedTopK(absl::Span<const float> logits,
                                       absl::Span<const float> noise, float temperature, int k,
                                       bool* finite) {
  std::vector<ScoredToken> best;
  PerturbedTopK(logits, noise, temperature, k, &best, finite);
  return best;
}

void PerturbedTopK(absl::Span<const float> logits, absl::Span<const float> noise, float temperature,
                   int k, std::vector<ScoredToken>* best_tokens, bool* finite) {
  std::vector<ScoredToken>& best = *best_tokens;  // with the worst in front
  best.clear();
  if (k <= 0) return;
  best.reserve(std::min<size_t>(k, logits.size()));
  if (finite != nullptr) *finite = true;
  const auto full = [&] { return static_cast<int>(best.size()) == k; };
  ForEachChunk(
      logits, noise, temperature,
      [&](float chunk_best) {
        if (finite != nullptr) *finite = *finite && chunk_best != kNotFinite;
        return !full() || chunk_best > best.front().score;
      },
      [&](absl::Span<const float> scores, int begin, float) {
        for (size_t i = 0; i < scores.size(); ++i) {
          if (std::isnan(scores[i])) continue;
          const ScoredToken candidate{begin + static_cast<int32_t>(i), scores[i]};
          if (full()) {
            if (!Better(candidate, best.front())) continue;
            std::pop_heap(best.begin(), best.end(), Better);
            best.pop_back();
          }
          best.push_back(candidate);
          std::push_heap(best.begin(), best.end(), Better);
        }
      });
  std::sort_heap(best.begin(), best.end(), Better);
}

}  // namespace specfabric::sampling
