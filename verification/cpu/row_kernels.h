#ifndef SPECFABRIC_VERIFICATION_CPU_ROW_KERNELS_H_
#define SPECFABRIC_VERIFICATION_CPU_ROW_KERNELS_H_

// The loops over a row of the vocabulary that verification is made of, a chunk at a time: a chunk
// stays in the first-level cache from one loop to the next. Every variant gives the same bits.

#include <cstdint>
#include <limits>

#include "base/exp.h"
#include "base/isa.h"
#include "verification/row_probs.h"

namespace specfabric::verification {

using base::ExpScale;
using base::ScaledExp;

// Every array below has kRowChunk values; callers pad.

// The logit of a token that no draw takes.
inline constexpr float kExcludedLogit = -std::numeric_limits<float>::infinity();

struct ExpResult {
  double sum = 0;      // of the probs
  float max = 0;       // of the logits
  bool finite = true;  // all logits
};

// Sums are in the order of verification/row_probs.h, which no variant changes.
struct RowKernels {
  // The largest; what is no number never is. -inf if nothing else is there.
  float (*max)(const float* logits);
  // probs[i] = ScaledExp(logits[i], reference, scale).
  ExpResult (*exp_chunk)(const float* logits, float reference, ExpScale scale, float* probs);
  double (*sum)(const float* values);
  // The sum of w log2(w) over the same probs, 0 log2(0) = 0.
  double (*entropy)(const float* logits, float reference, ExpScale scale, const float* probs);
  // left[i] = max(0, factor * values[i] - draft_scale * draft[i]), draft in bfloat16; returns their
  // sum. `left` may not overlap the others.
  double (*subtract)(const float* values, float factor, const uint16_t* draft, float draft_scale,
                     float* left);
};

// isa: one that base::Supported().
const RowKernels& KernelsFor(base::Isa isa);

}  // namespace specfabric::verification

#endif  // SPECFABRIC_VERIFICATION_CPU_ROW_KERNELS_H_
