#ifndef SPECFABRIC_MODEL_CUDA_COLLECTIVES_H_
#define SPECFABRIC_MODEL_CUDA_COLLECTIVES_H_

// What the GPUs of a group tell each other: sums over those of a pipeline stage, by NCCL or in one
// shot (peer_sum.h), and what goes from stage to stage. Owned by one rank's thread; the ranks of a
// stage make the same sums in the same order, and all ranks everything else.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/cuda/device.h"
#include "base/cuda/memory.h"
#include "model/cuda/peer_sum.h"
#include "model/parallel/communicator.h"

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
  // Every rank's thread calls this at the same time; `group` tells the ranks how to find each
  // other, and `stage`, which is Communicator::Split's or `group` itself, those of a stage. All
  // outlive it. DeadlineExceeded: not all ranks have met. Aborted: another rank failed; all ranks
  // do if one does.
  static absl::StatusOr<std::unique_ptr<Collectives>> Create(Communicator* group,
                                                             Communicator* stage,
                                                             const base::cuda::Device* device,
                                                             const CollectivesOptions& options);
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  // Takes the memory for sums of so many floats, of every rank alike. Nothing that was enqueued may
  // still use what there was.
  absl::Status Reserve(int64_t count);

  // All of these enqueue. A sum of more than what is reserved waits for what was enqueued first.

  // data[i] becomes the sum over the stage's ranks. Nothing to do for one rank.
  absl::Status Sum(float* data, int64_t count);
  // data[i] becomes that of the one rank, of all stages, where it is not zero.
  absl::Status Join(float* data, int64_t count);
  // `out` becomes the `in` of the same rank of the next stage, whose size it must have; 0: nothing.
  absl::Status HandOver(const float* out, int64_t out_count, float* in, int64_t in_count);
  // data becomes that of the last stage.
  absl::Status FromLastStage(float* data, int64_t count);
  // Small sums are made in one shot.
  bool has_peer_sums() const { return peers_ != nullptr; }

 private:
  Collectives(const base::cuda::Device* device, int rank, int group_ranks, int ranks,
              const CollectivesOptions& options)
      : device_(device), rank_(rank), group_ranks_(group_ranks), ranks_(ranks), options_(options) {}

  absl::Status Meet(Communicator* group, int first, int ranks, ncclComm** communicator) const;

  const base::cuda::Device* const device_;
  const int rank_, group_ranks_;  // of the group
  const int ranks_;               // of a stage
  const CollectivesOptions options_;
  ncclComm* communicator_ = nullptr;        // of the stage; null: it is one rank
  ncclComm* group_communicator_ = nullptr;  // null: there is but one stage
  base::cuda::DeviceBuffer parts_;          // [ranks][count]
  std::unique_ptr<PeerSum> peers_;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_COLLECTIVES_H_
