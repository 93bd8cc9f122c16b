#ifndef SPECFABRIC_VERIFICATION_CUDA_ARG_MAX_H_
#define SPECFABRIC_VERIFICATION_CUDA_ARG_MAX_H_

// The coupled choice of a token on the device (verification.md section 1): the arg-max of
// logit(x) + T g(seed, position, x) over a shard of the vocabulary, or over what filters keep of a
// whole row, with the noise of sampling/gumbel.h made where it is used, so that the logits are read
// once and nothing else is. The same bits as sampling::PerturbedArgMax on a CPU, and the token
// of sampling::SampleRow.

#include <bit>
#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda/logit_matrix.h"
#include "base/cuda/stream.h"
#include "base/finite.h"
#include "base/isa.h"
#include "base/types.h"
#include "sampling/sampling.h"
#include "verification/device_verifier.h"

namespace specfabric::verification::cuda {

// A candidate as a number: the larger is Better() (a higher score, then a lower id), so that the
// maximum over shards is the choice.
using PackedChoice = uint64_t;

// score: a number.
SPECFABRIC_HOST_DEVICE inline PackedChoice Pack(float score, base::TokenId id) {
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 as 0: they are equal
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return PackedChoice{ordered} << 32 | static_cast<uint32_t>(~id);
}
// As any token of a row competes by its plain logit: what is not finite wins, and shows by its
// score.
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

// What filters leave of a row: the tokens that compete, by their plain logits, as `least` or
// better. Where the logits are not all finite, all compete.
struct RowFilter {
  PackedChoice least = 0;  // the worst token that is kept
  PackedChoice best = 0;   // of all
  SPECFABRIC_HOST_DEVICE bool finite() const { return IsFinite(best); }
};

// Enqueues: best[i] becomes the best of row how[i].row, not IsFinite() where one of the row's
// logits is not. how and best: [count], device memory. filters: null, or [count] in device memory,
// made of the same rows, which are then whole. InvalidArgument: nothing to choose, or from no ids.
// Internal: the device's own error.
absl::Status EnqueueArgMax(const base::cuda::LogitMatrix& logits, const RowChoice* how,
                           const RowFilter* filters, int32_t count, PackedChoice* best,
                           base::cuda::Stream stream);

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_VERIFICATION_CUDA_ARG_MAX_H_
