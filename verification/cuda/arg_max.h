#ifndef SPECFABRIC_VERIFICATION_CUDA_ARG_MAX_H_
#define SPECFABRIC_VERIFICATION_CUDA_ARG_MAX_H_

// The coupled choice of a token on the device (verification.md section 1): the arg-max of
// logit(x) + T g(seed, position, x) over a shard of the vocabulary, or over the tokens of a whole
// row that the filters keep. The noise of sampling/gumbel.h is computed in the kernel, which reads
// the logits once and nothing else. The result has the bits of sampling::PerturbedArgMax on a CPU,
// and the token is that of sampling::SampleRow.

#include <bit>
#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda/logit_matrix.h"
#include "base/cuda/stream.h"
#include "base/finite.h"
#include "base/isa.h"
#include "base/types.h"
#include "sampling/sampling.h"
#include "verification/cuda/row_join.h"
#include "verification/device_verifier.h"

namespace specfabric::verification::cuda {

// A candidate as one number that orders candidates by score, then by lower id, so that the choice
// is the maximum over all shards.
using PackedChoice = uint64_t;

// score: not NaN.
SPECFABRIC_HOST_DEVICE inline PackedChoice Pack(float score, base::TokenId id) {
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 becomes 0: they are equal
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return PackedChoice{ordered} << 32 | static_cast<uint32_t>(~id);
}
// The candidate of a token by its logit alone. One whose logit is not finite wins, with a score of
// kNotFinite.
SPECFABRIC_HOST_DEVICE inline PackedChoice Competitor(float logit, base::TokenId id) {
  return Pack(base::IsFinite(logit) ? logit : sampling::kNotFinite, id);
}
SPECFABRIC_HOST_DEVICE inline base::TokenId TokenOf(PackedChoice packed) {
  return static_cast<base::TokenId>(~static_cast<uint32_t>(packed));
}
SPECFABRIC_HOST_DEVICE inline float ScoreOf(PackedChoice packed) {
  const uint32_t ordered = static_cast<uint32_t>(packed >> 32);
  return std::bit_cast<float>((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}
SPECFABRIC_HOST_DEVICE inline bool IsFinite(PackedChoice packed) {
  return ScoreOf(packed) != sampling::kNotFinite;
}
inline sampling::ScoredToken Unpack(PackedChoice packed) {
  return {TokenOf(packed), ScoreOf(packed)};
}

// What the filters keep of a row: the tokens whose Competitor is at least `least`. If the logits
// are not all finite, they keep every token.
struct RowFilter {
  PackedChoice least = 0;  // the last token that is kept
  PackedChoice best = 0;   // of the row
  SPECFABRIC_HOST_DEVICE bool finite() const { return IsFinite(best); }
};

// Enqueues: best[i] becomes the choice from row how[i].row; it is not IsFinite() where one of the
// row's logits is not finite. how and best: [count], device memory. filters: null, or [count] in
// device memory, of the same rows, which then have the whole vocabulary. joins: [count]. Each logit
// is read once, by as many blocks as fill a GPU even for one row. InvalidArgument: no rows or no
// ids. Internal: an error of the device.
absl::Status EnqueueArgMax(const base::cuda::LogitMatrix& logits, const RowChoice* how,
                           const RowFilter* filters, int32_t count, RowJoin* joins,
                           PackedChoice* best, base::cuda::Stream stream);

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_VERIFICATION_CUDA_ARG_MAX_H_
