#ifndef SPECFABRIC_VERIFICATION_CUDA_TREE_VERIFY_H_
#define SPECFABRIC_VERIFICATION_CUDA_TREE_VERIFY_H_

// Verification on the device by the verification methods that weigh p: rejection and traversal, by
// every way of drawing siblings, and typical (verification/reference/acceptance.h). Decides as
// verification::TreeVerifier does, from the same random numbers and the same bits of p
// (row_distribution.h), q and what is left of them; the host waits for nothing in between.

#include <cstddef>

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "verification/cuda/row_distribution.h"
#include "verification/cuda/tree_walk.h"

namespace specfabric::verification::cuda {

// Device memory that EnqueueTreeVerify works in, aligned to 16 bytes: about as much as the logits
// of the batch's nodes take.
size_t TreeVerifyBytes(const RoundBatch& batch);

// Enqueues: verified[s] becomes what is accepted of tree s; its bonus token is drawn from what the
// rejected children have left of p, or is kNoToken where the logits there are not all finite.
// verified: [sequences], device memory. The batch and the workspace stay as they are until the
// stream is through. InvalidArgument: no trees, or more nodes or tokens than there may be.
// Internal: the device's own error.
absl::Status EnqueueTreeVerify(const RoundBatch& batch, void* workspace, Walked* verified,
                               base::cuda::Stream stream);

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_VERIFICATION_CUDA_TREE_VERIFY_H_
