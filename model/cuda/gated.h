#ifndef SPECFABRIC_MODEL_CUDA_GATED_H_
#define SPECFABRIC_MODEL_CUDA_GATED_H_

// For .cu files alone.

namespace specfabric::model::cuda {

// silu(gate) * up (Shazeer, 2002.05202).
__device__ inline float Gated(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_GATED_H_
