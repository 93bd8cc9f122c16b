#ifndef SPECFABRIC_VERIFICATION_CUDA_CUDA_VERIFIER_H_
#define SPECFABRIC_VERIFICATION_CUDA_CUDA_VERIFIER_H_

// Verifies a step's trees on the device that has their logits: one copy takes the kernels' inputs
// to the device, the kernels run one after another on its stream, and a few words for each tree
// come back.

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

// Owned by one rank's thread; keeps its memory from step to step: on the device about as much as
// the logits of a step's trees that are verified by probabilities.
class CudaVerifier : public DeviceVerifier {
 public:
  explicit CudaVerifier(const base::cuda::Device* device) : device_(device) {}

  absl::Status Best(const base::cuda::LogitMatrix& logits, absl::Span<const RowChoice> choices,
                    absl::Span<sampling::ScoredToken> best) override;
  // The logits are float32; work enqueued on the device's stream may still compute them.
  // InvalidArgument: a tree with no nodes or too many, or in total more nodes or tokens than the
  // kernels take. After an error `accepted` is unchanged.
  absl::Status Verify(const base::cuda::LogitMatrix& logits, absl::Span<const DeviceTree> trees,
                      absl::Span<speculation::Accepted> accepted) override;

 private:
  // Trees verified by the same kernels, concatenated, on the host.
  struct Group {
    std::vector<int32_t> index = {};  // of each tree, in the span that Verify was given
    std::vector<int32_t> begin = {0}, parents = {};
    std::vector<base::TokenId> tokens = {};
    std::vector<int32_t> draft_row = {};
    std::vector<uint64_t> ancestors = {};
    std::vector<RowChoice> choices = {};  // [nodes], for coupled verification
    std::vector<TreeRound> rounds = {};
    // Their addresses on the device.
    RoundBatch batch = {};
    const RowChoice* device_choices = nullptr;

    void Clear();
    void Add(int32_t tree_index, const DeviceTree& tree);
    int32_t size() const { return static_cast<int32_t>(index.size()); }
  };

  void Collect(const base::cuda::LogitMatrix& logits, absl::Span<const DeviceTree> trees);
  void Stage(absl::Span<const DeviceTree> trees, Group* group);
  absl::Status Reserve(int32_t vocabulary, size_t trees);
  // walked: [trees], one group after another.
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
  Group plain_, filtered_;  // coupled verification, without and with filters
  Group by_probs_;          // the verification methods that use p

  base::cuda::Upload upload_;
  base::cuda::DeviceBuffer chosen_;     // [nodes] of one group
  base::cuda::DeviceBuffer workspace_;  // of one group
  base::cuda::DeviceBuffer joins_;      // of any group: each leaves it as it was
  base::cuda::DeviceBuffer walked_;     // [trees], one group after another
  base::cuda::PinnedBuffer host_walked_;
  base::cuda::DeviceBuffer best_;  // of Best: [choices] RowChoice, then [choices] PackedChoice
  base::cuda::PinnedBuffer host_best_;
};

}  // namespace specfabric::verification::cuda

#endif  // SPECFABRIC_VERIFICATION_CUDA_CUDA_VERIFIER_H_
