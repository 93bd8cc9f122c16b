#ifndef SPECFABRIC_VERIFICATION_CPU_ROW_KERNELS_H_
#define SPECFABRIC_VERIFICATION_CPU_ROW_KERNELS_H_

// The loops of verification over a row of the vocabulary, one chunk at a time so that it stays in
// the first-level cache from one loop to the next. Every variant computes the same bits.

#include <cstdint>
#include <limits>

#include "base/exp.h"
#include "base/isa.h"
#include "verification/row_probs.h"

namespace specfabric::verification {

using base::ExpScale;
using base::ScaledExp;

// Every array below has kRowChunk values; callers pad.

// The logit of a token that is never drawn.
inline constexpr float kExcludedLogit = -std::numeric_limits<float>::infinity();

struct ExpResult {
  double sum = 0;      // of the probs
  float max = 0;       // of the logits
  bool finite = true;  // all logits
};

// Sums are in the order of verification/row_probs.h, which no variant changes.
struct RowKernels {
  // The largest value, ignoring NaN; -inf if there is none.
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

// isa: base::Supported() on this CPU.
const RowKernels& KernelsFor(base::Isa isa);

}  // namespace specfabric::verification

#endif  // SPECFABRIC_VERIFICATION_CPU_ROW_KERNELS_H_
