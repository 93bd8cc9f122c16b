#ifndef SPECFABRIC_VERIFICATION_CUDA_TREE_VERIFY_H_
#define SPECFABRIC_VERIFICATION_CUDA_TREE_VERIFY_H_

// Verification on the device by the methods that use target probabilities: rejection and traversal,
// with every way of drawing siblings, and typical (verification/reference/acceptance.h). Decides
// like verification::TreeVerifier, from the same random numbers and the same bits of p
// (row_distribution.h), q and their residuals, without waiting for the host in between.
//
// Of a row of V tokens, bytes are read as follows:
//   every node's logits, once (with filters up to four times)        4 V
//   logits and draft row where a rejected draft token leaves a
//   residual that decides about more than is known without it        4 V + 2 V
//   (with siblings to come, the residual is written and read again   4 V + 4 V)
//   the chunk that the bonus token is drawn from                     6 KiB

#include <cstddef>

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "verification/cuda/row_distribution.h"
#include "verification/cuda/tree_walk.h"

namespace specfabric::verification::cuda {

// The size of EnqueueTreeVerify's workspace in device memory, aligned to 16 bytes: about that of
// the logits of the batch's nodes, and of a row more for each tree.
size_t TreeVerifyBytes(const RoundBatch& batch);

// Enqueues: verified[s] becomes the accepted path of tree s; its bonus token is drawn from the
// residual that the rejected children leave of p, or is kNoToken if the logits there are not all
// finite. verified: [sequences], device memory. joins: RowJoinBytes of it (row_join.h). The batch
// and the workspace must not change until this work has run. InvalidArgument: no trees, or too many
// nodes or tokens. Internal: an error of the device.
absl::Status EnqueueTreeVerify(const RoundBatch& batch, void* workspace, void* joins,
                               Walked* verified, base::cuda::Stream stream);

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_VERIFICATION_CUDA_TREE_VERIFY_H_
