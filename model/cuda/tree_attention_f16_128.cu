#include "model/cuda/tree_attention_kernel.cuh"

namespace specfabric::model::cuda {

template absl::Status PrepareTreeAttention<AttentionType::kFloat16, 128>();
template absl::Status EnqueueTreeAttention<AttentionType::kFloat16, 128>(
    const TreeAttentionCall& call, base::cuda::Stream stream);

}  // namespace specfabric::model::cuda
