#include "model/cuda/tree_attention_kernel.cuh"

namespace specfabric::model::cuda {

template absl::Status PrepareTreeAttention<AttentionType::kFloat16, 64>();
template absl::Status EnqueueTreeAttention<AttentionType::kFloat16, 64>(
    const TreeAttentionCall& call, base::cuda::Stream stream);

}  // namespace specfabric::model::cuda
