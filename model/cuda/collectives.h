#ifndef SPECFABRIC_MODEL_CUDA_COLLECTIVES_H_
#define SPECFABRIC_MODEL_CUDA_COLLECTIVES_H_

// Collectives among the GPUs of a group: all-reduces within a pipeline stage, by NCCL or in one
// shot (peer_sum.h), and transfers from stage to stage. Owned by one rank's thread. The ranks of a
// stage make the same sums in the same order; all ranks make all other calls in the same order.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/cuda/device.h"
#include "base/cuda/memory.h"
#include "model/cuda/layers.h"
#include "model/cuda/peer_sum.h"
#include "model/features.h"
#include "model/parallel/communicator.h"

struct ncclComm;

namespace specfabric::model::cuda {

struct CollectivesOptions {
  // Parts are gathered and added by a binary tree over the ranks in order; the order of NCCL's own
  // sum depends on the number of elements.
  bool batch_invariant = true;
  bool peer_sums = false;  // small sums in one shot, in that order, where a trial shows it works
  // How long ranks may take to join. The group may span machines, and a missing rank must not block
  // the others forever.
  base::Nanos join_timeout = 120 * base::kSecond;
};

class Collectives {
 public:
  // Called by every rank's thread at the same time. The ranks exchange NCCL's ids over `group` and,
  // for a stage, over `stage`, which is Communicator::Split's or `group` itself. All arguments must
  // outlive the result. DeadlineExceeded: not all ranks joined in time. Aborted: another rank
  // failed; if one fails, all do.
  static absl::StatusOr<std::unique_ptr<Collectives>> Create(Communicator* group,
                                                             Communicator* stage,
                                                             const base::cuda::Device* device,
                                                             const CollectivesOptions& options);
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  // Allocates the memory for sums of so many floats, the same number on every rank. No enqueued
  // work may still use the old memory.
  absl::Status Reserve(int64_t count);

  // All of these enqueue. A sum larger than reserved first waits for the enqueued work.

  // data[i] becomes the sum over the stage's ranks.
  absl::Status Sum(float* data, int64_t count);
  // EnqueueAddAndNorm of the sum over the stage's ranks of `added`, which may be written; in one
  // kernel where peers make small sums, with the same bits. norm.added is not read.
  absl::Status SumAddAndNorm(NormArgs norm, float* added);
  // data[i] becomes the value of the one rank, of all in the group, on which it is not zero.
  absl::Status Join(float* data, int64_t count);
  // Sends `out` to the same rank of the next stage, which receives it as `in`; the sizes must
  // agree. 0: nothing is sent or received.
  absl::Status HandOver(const float* out, int64_t out_count, float* in, int64_t in_count);
  // data becomes the last stage's data.
  absl::Status FromLastStage(float* data, int64_t count);
  // Whether small sums are made in one shot, and why not. The same on all ranks.
  const FeatureState& peer_sums() const { return peer_sums_; }

 private:
  Collectives(const base::cuda::Device* device, int rank, int group_ranks, int ranks,
              const CollectivesOptions& options)
      : device_(device), rank_(rank), group_ranks_(group_ranks), ranks_(ranks), options_(options) {}

  absl::Status Meet(Communicator* group, int first, int ranks, ncclComm** communicator) const;
  absl::Status MakePeerSums(Communicator* group, Communicator* stage);

  const base::cuda::Device* const device_;
  const int rank_, group_ranks_;  // of the group
  const int ranks_;               // of a stage
  const CollectivesOptions options_;
  ncclComm* communicator_ = nullptr;        // of the stage; null: it has one rank
  ncclComm* group_communicator_ = nullptr;  // null: there is one stage
  base::cuda::DeviceBuffer parts_;          // [ranks][count]
  std::unique_ptr<PeerSum> peers_;
  FeatureState peer_sums_;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_COLLECTIVES_H_
