#ifndef SPECFABRIC_VERIFICATION_CUDA_CUDA_VERIFIER_H_
#define SPECFABRIC_VERIFICATION_CUDA_CUDA_VERIFIER_H_

// Verifies a step's trees where their logits are: what the kernels read of them goes to the device
// in one copy, the kernels follow each other on its stream, and a few words a tree come back.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/cuda/device.h"
#include "base/cuda/memory.h"
#include "base/cuda/upload.h"
#include "verification/cuda/arg_max.h"
#include "verification/cuda/row_distribution.h"
#include "verification/cuda/tree_walk.h"
#include "verification/device_verifier.h"

namespace specfabric::verification::cuda {

// Owned by one rank's thread; keeps its memory from step to step. On the device that is about as
// much as the logits of the weighed trees of a step take.
class CudaVerifier : public DeviceVerifier {
 public:
  explicit CudaVerifier(const base::cuda::Device* device) : device_(device) {}

  absl::Status Best(const base::cuda::LogitMatrix& logits, absl::Span<const RowChoice> choices,
                    absl::Span<sampling::ScoredToken> best) override;
  // The device's stream may still be making the logits, which are float32. InvalidArgument: a tree
  // without nodes or with more than it may have, or together more nodes or tokens than the kernels
  // take. `accepted` is as it was after an error.
  absl::Status Verify(const base::cuda::LogitMatrix& logits, absl::Span<const DeviceTree> trees,
                      absl::Span<speculation::Accepted> accepted) override;

 private:
  // Trees that the same kernels decide, one behind the other, on the host.
  struct Group {
    std::vector<int32_t> index = {};  // in what is to be verified
    std::vector<int32_t> begin = {0}, parents = {};
    std::vector<base::TokenId> tokens = {};
    std::vector<int32_t> draft_row = {};
    std::vector<uint64_t> ancestors = {};
    std::vector<RowChoice> choices = {};  // [nodes], of the coupled rule
    std::vector<TreeRound> rounds = {};
    // Where these are on the device.
    RoundBatch batch = {};
    const RowChoice* device_choices = nullptr;

    void Clear();
    void Add(int32_t tree_index, const DeviceTree& tree);
    int32_t size() const { return static_cast<int32_t>(index.size()); }
  };

  void Collect(const base::cuda::LogitMatrix& logits, absl::Span<const DeviceTree> trees);
  void Stage(absl::Span<const DeviceTree> trees, Group* group);
  absl::Status Reserve(size_t trees);
  // walked: [trees], group by group.
  absl::Status Enqueue(const base::cuda::LogitMatrix& logits, Walked* walked,
                       base::cuda::Stream stream);
  // filters: null, or [nodes] of the group on the device.
  absl::Status EnqueueCoupled(const Group& group, const RowFilter* filters,
                              const base::cuda::LogitMatrix& logits, Walked* walked,
                              base::cuda::Stream stream);
  absl::Status EnqueueFiltered(const base::cuda::LogitMatrix& logits, Walked* walked,
                               base::cuda::Stream stream);
  absl::Status EnqueueVerify(Walked* walked, base::cuda::Stream stream);

  const base::cuda::Device* const device_;
  Group plain_, filtered_;  // of the coupled rule, without filters and with
  Group by_probs_;          // of the rules that weigh p

  base::cuda::Upload upload_;
  base::cuda::DeviceBuffer chosen_;     // [nodes] of one group
  base::cuda::DeviceBuffer workspace_;  // of one group
  base::cuda::DeviceBuffer walked_;     // [trees], group by group
  base::cuda::PinnedBuffer host_walked_;
  base::cuda::DeviceBuffer best_;  // Best: [choices] of how to choose, then of what was chosen
  base::cuda::PinnedBuffer host_best_;
};

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_VERIFICATION_CUDA_CUDA_VERIFIER_H_
