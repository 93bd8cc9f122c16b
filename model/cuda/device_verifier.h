#ifndef SPECFABRIC_MODEL_CUDA_DEVICE_VERIFIER_H_
#define SPECFABRIC_MODEL_CUDA_DEVICE_VERIFIER_H_

// Verifies a step's trees where their logits are: what the kernels read of them goes to the device
// in one copy, the kernels follow each other on its stream, and a few words a tree come back.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "model/cuda/arg_max.h"
#include "model/cuda/device.h"
#include "model/cuda/memory.h"
#include "model/cuda/row_distribution.h"
#include "model/cuda/tree_walk.h"
#include "model/cuda/upload.h"
#include "model/device_logits.h"

namespace specfabric::model::cuda {

// Owned by one rank's thread; keeps its memory from step to step. On the device that is about as
// much as the logits of the weighed trees of a step take.
class DeviceVerifier {
 public:
  // DeviceLogits::Verify, on rows of the whole vocabulary in float32, which the device's stream may
  // still be making. ResourceExhausted or Internal: the device's own error. InvalidArgument: a tree
  // without nodes or with more than it may have, or together more nodes or tokens than the kernels
  // take. `accepted` is as it was after an error.
  absl::Status Verify(const Device& device, const LogitMatrix& logits,
                      absl::Span<const DeviceTree> trees,
                      absl::Span<speculation::Accepted> accepted);

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

  void Collect(const LogitMatrix& logits, absl::Span<const DeviceTree> trees);
  void Stage(absl::Span<const DeviceTree> trees, Group* group);
  absl::Status Reserve(size_t trees);
  // walked: [trees], group by group.
  absl::Status Enqueue(const LogitMatrix& logits, Walked* walked, Stream stream);
  // filters: null, or [nodes] of the group on the device.
  absl::Status EnqueueCoupled(const Group& group, const RowFilter* filters,
                              const LogitMatrix& logits, Walked* walked, Stream stream);
  absl::Status EnqueueFiltered(const LogitMatrix& logits, Walked* walked, Stream stream);
  absl::Status EnqueueVerify(Walked* walked, Stream stream);

  Group plain_, filtered_;  // of the coupled rule, without filters and with
  Group by_probs_;          // of the rules that weigh p

  Upload upload_;
  DeviceBuffer chosen_;     // [nodes] of one group
  DeviceBuffer workspace_;  // of one group
  DeviceBuffer walked_;     // [trees], group by group
  PinnedBuffer host_walked_;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_DEVICE_VERIFIER_H_
