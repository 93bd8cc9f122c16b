#ifndef SPECFABRIC_MODEL_CUDA_COLLECTIVES_H_
#define SPECFABRIC_MODEL_CUDA_COLLECTIVES_H_

// Sums over the GPUs of one tensor-parallel group, by NCCL. Owned by one rank's thread; all ranks
// make the same calls in the same order.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/communicator.h"
#include "model/cuda/device.h"
#include "model/cuda/memory.h"

struct ncclComm;

namespace specfabric::model::cuda {

// This rank's status, or Aborted if it is well and another rank's is not. All ranks call it, so
// that none waits in a collective for one that has failed.
absl::Status AgreeOn(Communicator* host, absl::Status status);

class Collectives {
 public:
  // Every rank's thread calls this at the same time; `host` tells the ranks how to find each other.
  // Both outlive it. Batch-invariant: parts are gathered and added pairwise, as a binary tree over
  // the ranks in order, whereas the order of NCCL's own sum depends on how much there is to add.
  static absl::StatusOr<std::unique_ptr<Collectives>> Create(Communicator* host,
                                                             const Device* device,
                                                             bool batch_invariant);
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  // Enqueues: data[i] becomes the sum over ranks. Nothing to do for one rank.
  absl::Status Sum(float* data, int64_t count);

 private:
  Collectives(const Device* device, int ranks, bool batch_invariant)
      : device_(device), ranks_(ranks), batch_invariant_(batch_invariant) {}

  const Device* const device_;
  const int ranks_;
  const bool batch_invariant_;
  ncclComm* communicator_ = nullptr;
  DeviceBuffer parts_;  // [ranks][count]
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_COLLECTIVES_H_
