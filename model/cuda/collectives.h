#ifndef SPECFABRIC_MODEL_CUDA_COLLECTIVES_H_
#define SPECFABRIC_MODEL_CUDA_COLLECTIVES_H_

// Sums over the GPUs of one tensor-parallel group, by NCCL or in one shot (peer_sum.h). Owned by
// one rank's thread; all ranks make the same calls in the same order.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "model/communicator.h"
#include "model/cuda/device.h"
#include "model/cuda/memory.h"
#include "model/cuda/peer_sum.h"

struct ncclComm;

namespace specfabric::model::cuda {

struct CollectivesOptions {
  // Parts are gathered and added pairwise, as a binary tree over the ranks in order, whereas the
  // order of NCCL's own sum depends on how much there is to add.
  bool batch_invariant = true;
  bool peer_sums = false;  // small ones in one shot, in that order, where the GPUs allow it
  // How long ranks may take to meet. The group may span machines, and one that is not there must
  // not hold up the others for ever.
  base::Nanos join_timeout = 120 * base::kSecond;
};

class Collectives {
 public:
  // Every rank's thread calls this at the same time; `host` tells the ranks how to find each other.
  // Both outlive it. DeadlineExceeded: not all ranks have met. Aborted: another rank failed; all
  // ranks do if one does.
  static absl::StatusOr<std::unique_ptr<Collectives>> Create(Communicator* host,
                                                             const Device* device,
                                                             const CollectivesOptions& options);
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  // Enqueues: data[i] becomes the sum over ranks. Nothing to do for one rank.
  absl::Status Sum(float* data, int64_t count);
  // Small sums are made in one shot.
  bool has_peer_sums() const { return peers_ != nullptr; }

 private:
  Collectives(const Device* device, int ranks, const CollectivesOptions& options)
      : device_(device), ranks_(ranks), options_(options) {}

  absl::Status Join(Communicator* host);

  const Device* const device_;
  const int ranks_;
  const CollectivesOptions options_;
  ncclComm* communicator_ = nullptr;
  DeviceBuffer parts_;  // [ranks][count]
  std::unique_ptr<PeerSum> peers_;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_COLLECTIVES_H_
