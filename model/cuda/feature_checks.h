#ifndef SPECFABRIC_MODEL_CUDA_FEATURE_CHECKS_H_
#define SPECFABRIC_MODEL_CUDA_FEATURE_CHECKS_H_

// Which features of model/features.h work on this machine: the checks that a start makes, and how
// the ranks of a group agree on them. A check that fails is a reason in the log, never a failure to
// start. Those here run on one rank alone, without collectives, so that a rank that fails leaves no
// other one waiting.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/device.h"
#include "model/cuda/tree_attention.h"
#include "model/features.h"
#include "model/parallel/communicator.h"

namespace specfabric::model::cuda {

// On if `mine`, this rank's check, is OK on every rank; else off on all of them, with the reason of
// the first rank that failed by itself (an Aborted rank failed because of another). All ranks call
// it. Aborted: the group has ended.
absl::StatusOr<FeatureState> AgreeOnFeature(Communicator* group, const absl::Status& mine);

// Whether ranks of the group run in several processes. All ranks call it.
bool SpansProcesses(Communicator* group);

// Whether work can be captured and launched as a graph.
absl::Status CheckGraphs(const base::cuda::Device& device);

// Whether the kernels of flash_attention.h take such heads, and compute attention: of a chain over
// some hundred slots and a tree over few, beside plain loops on the host. The limits of a batch in
// `config` are ignored.
absl::Status CheckFlashAttention(const base::cuda::Device& device,
                                 const TreeAttentionConfig& config);

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_FEATURE_CHECKS_H_
