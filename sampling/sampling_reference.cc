// The rules of sampling word for word, in double precision, sharing no code with the fast
// paths except Philox, which has known answers of its own.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "sampling/philox.h"
#include "sampling/sampling.h"

namespace specfabric::sampling {
namespace {

double ReferenceNoise(uint64_t seed, uint32_t position, uint32_t token) {
  const DrawSite site{.purpose = Purpose::kGumbel, .position = position};
  const uint32_t word = PhiloxWord(seed, site, token);
  const double from_zero = (word + 0.5) * 0x1p-32;
  const double from_one = (0xFFFFFFFFu - word + 0.5) * 0x1p-32;
  const double exponential = from_zero < 0.5 ? -std::log1p(-from_zero) : -std::log(from_one);
  return -std::log(exponential);
}

}  // namespace

base::TokenId SampleRowReference(absl::Span<const float> logits,
                                 const base::SamplingParams& sampling, uint32_t position) {
  // Most likely first, ties to the lowest id.
  std::vector<base::TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](base::TokenId a, base::TokenId b) { return logits[a] > logits[b]; });
  if (sampling.greedy()) return order[0];

  if (sampling.top_k > 0 && sampling.top_k < static_cast<int>(order.size())) {
    order.resize(sampling.top_k);
  }
  std::vector<double> p(order.size());
  double total = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    p[i] =
        std::exp((static_cast<double>(logits[order[i]]) - logits[order[0]]) / sampling.temperature);
    total += p[i];
  }
  if (sampling.top_p < 1.0f) {
    size_t size = 0;
    for (double sum = 0; size < order.size() && (size == 0 || sum < sampling.top_p * total);) {
      sum += p[size++];
    }
    order.resize(size);
  }
  if (sampling.min_p > 0.0f) {
    size_t size = 1;
    while (size < order.size() && p[size] >= sampling.min_p * p[0]) ++size;
    order.resize(size);
  }

  base::TokenId winner = base::kNoToken;
  double best = -std::numeric_limits<double>::infinity();
  for (base::TokenId token : order) {
    const double score = logits[token] + static_cast<double>(sampling.temperature) *
                                             ReferenceNoise(sampling.seed, position, token);
    if (winner == base::kNoToken || score > best || (score == best && token < winner)) {
      winner = token;
      best = score;
    }
  }
  return winner;
}

}  // namespace specfabric::sampling
