#ifndef SPECFABRIC_TARGET_ROW_KERNELS_H_
#define SPECFABRIC_TARGET_ROW_KERNELS_H_

// The loops over a row of the vocabulary that verification is made of, a chunk at a time: a chunk
// stays in the first-level cache from one loop to the next. Every variant gives the same bits.

#include <cstdint>
#include <limits>

#include "base/exp.h"
#include "base/isa.h"
#include "speculation/row_weights.h"

namespace specfabric::target {

using base::ExpScale;
using base::ExpWeight;

// Every array below has as many values; callers pad.
using speculation::kRowChunk;

// The logit of a token that no draw takes.
inline constexpr float kNever = -std::numeric_limits<float>::infinity();

struct Weighed {
  double sum = 0;      // of the weights
  float max = 0;       // of the logits
  bool finite = true;  // all logits
};

// Sums are in the order of speculation/row_weights.h, which no variant changes.
struct RowKernels {
  // The largest; what is no number never is. -inf if nothing else is there.
  float (*max)(const float* logits);
  // weights[i] = ExpWeight(logits[i], reference, scale).
  Weighed (*weigh)(const float* logits, float reference, ExpScale scale, float* weights);
  double (*sum)(const float* values);
  // The sum of w log2(w) over the same weights, 0 log2(0) = 0.
  double (*entropy)(const float* logits, float reference, ExpScale scale, const float* weights);
  // left[i] = max(0, factor * values[i] - draft_scale * draft[i]), draft in bfloat16; returns their
  // sum. `left` may not overlap the others.
  double (*subtract)(const float* values, float factor, const uint16_t* draft, float draft_scale,
                     float* left);
};

// isa: one that base::Supported().
const RowKernels& KernelsFor(base::Isa isa);

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_ROW_KERNELS_H_
