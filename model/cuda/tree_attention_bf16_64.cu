#include "model/cuda/tree_attention_kernel.cuh"

namespace specfabric::model::cuda {

template absl::Status PrepareTreeAttention<AttentionType::kBFloat16, 64>();
template absl::Status EnqueueTreeAttention<AttentionType::kBFloat16, 64>(
    const TreeAttentionCall& call, base::cuda::Stream stream);

}  // namespace specfabric::model::cuda
