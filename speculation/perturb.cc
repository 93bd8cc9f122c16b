// The hot loops over a shard of the vocabulary: scores, their arg-max and their k best.

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <limits>

#include "base/gumbel.h"
#include "base/isa.h"
#include "speculation/sampling.h"

namespace specfabric::speculation {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr int kLanes = 16;
constexpr int kChunk = 1024;  // scores at a time: stay in the first-level cache

// scores[i] = logits[i] + temperature * noise[i]; returns the largest (NaN never is), or -inf.
SPECFABRIC_ALWAYS_INLINE float ScoreChunkBody(const float* logits, const float* noise,
                                              float temperature, int n, float* scores) {
  float best[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) best[lane] = kNever;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float score = std::fma(temperature, noise[i + lane], logits[i + lane]);
      scores[i + lane] = score;
      best[lane] = score > best[lane] ? score : best[lane];
    }
  }
  for (; i < n; ++i) {
    scores[i] = std::fma(temperature, noise[i], logits[i]);
    best[0] = scores[i] > best[0] ? scores[i] : best[0];
  }
  return *std::max_element(best, best + kLanes);
}

float ScoreChunkPortable(const float* logits, const float* noise, float temperature, int n,
                         float* scores) {
  return ScoreChunkBody(logits, noise, temperature, n, scores);
}
SPECFABRIC_TARGET_AVX2 float ScoreChunkAvx2(const float* logits, const float* noise,
                                            float temperature, int n, float* scores) {
  return ScoreChunkBody(logits, noise, temperature, n, scores);
}
SPECFABRIC_TARGET_AVX512 float ScoreChunkAvx512(const float* logits, const float* noise,
                                                float temperature, int n, float* scores) {
  return ScoreChunkBody(logits, noise, temperature, n, scores);
}

using ScoreChunk = float (*)(const float*, const float*, float, int, float*);
ScoreChunk BestScoreChunk() {
  switch (base::BestIsa()) {
    case base::Isa::kAvx512:
      return ScoreChunkAvx512;
    case base::Isa::kAvx2:
      return ScoreChunkAvx2;
    case base::Isa::kPortable:
      break;
  }
  return ScoreChunkPortable;
}

// Calls visit(scores of a chunk, index of its first, its largest score) over the whole row.
template <typename Visit>
void ForEachChunk(absl::Span<const float> logits, absl::Span<const float> noise, float temperature,
                  Visit visit) {
  const bool greedy = temperature == 0.0f;
  assert(greedy || noise.size() == logits.size());
  static const ScoreChunk score_chunk = BestScoreChunk();
  static constexpr std::array<float, kChunk> kNoNoise = {};
  std::array<float, kChunk> scores;
  const int size = static_cast<int>(logits.size());
  for (int begin = 0; begin < size; begin += kChunk) {
    const int n = std::min(kChunk, size - begin);
    const float* chunk_noise = greedy ? kNoNoise.data() : noise.data() + begin;
    const float best =
        score_chunk(logits.data() + begin, chunk_noise, temperature, n, scores.data());
    visit(absl::MakeConstSpan(scores.data(), n), begin, best);
  }
}

}  // namespace

void GumbelNoise(uint64_t seed, uint32_t position, int32_t first, absl::Span<float> out) {
  base::GumbelNoise(seed, position, first, out);
}

ScoredToken PerturbedArgMax(absl::Span<const float> logits, absl::Span<const float> noise,
                            float temperature, int32_t first) {
  if (logits.empty()) return {};
  // A row without any score above -inf has its lowest id chosen.
  ScoredToken winner{first, kNever};
  ForEachChunk(logits, noise, temperature,
               [&](absl::Span<const float> scores, int begin, float best) {
                 if (best <= winner.score) return;
                 const auto at = std::find(scores.begin(), scores.end(), best);
                 winner = {first + begin + static_cast<int32_t>(at - scores.begin()), best};
               });
  return winner;
}

std::vector<ScoredToken> PerturbedTopK(absl::Span<const float> logits,
                                       absl::Span<const float> noise, float temperature, int k) {
  std::vector<ScoredToken> best;  // a heap with the worst in front
  if (k <= 0) return best;
  best.reserve(std::min<size_t>(k, logits.size()));
  ForEachChunk(logits, noise, temperature,
               [&](absl::Span<const float> scores, int begin, float chunk_best) {
                 const bool full = static_cast<int>(best.size()) == k;
                 if (full && chunk_best <= best.front().score) return;
                 for (size_t i = 0; i < scores.size(); ++i) {
                   if (std::isnan(scores[i])) continue;
                   const ScoredToken candidate{begin + static_cast<int32_t>(i), scores[i]};
                   if (static_cast<int>(best.size()) == k) {
                     if (!Better(candidate, best.front())) continue;
                     std::pop_heap(best.begin(), best.end(), Better);
                     best.pop_back();
                   }
                   best.push_back(candidate);
                   std::push_heap(best.begin(), best.end(), Better);
                 }
               });
  std::sort_heap(best.begin(), best.end(), Better);
  return best;
}

}  // namespace specfabric::speculation
