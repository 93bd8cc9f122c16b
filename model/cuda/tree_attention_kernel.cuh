#ifndef SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_KERNEL_CUH_
#define SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_KERNEL_CUH_

// FlashInfer's paged prefill kernel (arXiv 2501.01005) with a mask of our own, for the files that
// instantiate it. Launched here and not by FlashInfer's dispatcher, because that one
// * picks the slots a step from the shared memory of the GPU at hand, and with it the bits,
// * keeps partial results in the type of the output, and so loses bits of a float32 sum,
// * compiles four kernels for each one that is ever used.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <exception>
#include <flashinfer/attention/cascade.cuh>
#include <flashinfer/attention/mask.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/page.cuh>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/cuda/error.h"
#include "model/cuda/tree_attention_kernel.h"

namespace specfabric::model::cuda {

// What FlashInfer's kernel reads of its parameters, by the names it reads them by. Its "requests"
// are our tiles.
template <typename T, typename Out>
struct TreeParams {
  using DTypeQ = T;
  using DTypeKV = T;
  using DTypeO = Out;
  using IdType = int32_t;

  T* q = nullptr;
  flashinfer::paged_kv_t<T, int32_t> paged_kv;
  int32_t* q_indptr = nullptr;
  int32_t* o_indptr = nullptr;
  Out* o = nullptr;
  float* lse = nullptr;
  flashinfer::uint_fastdiv group_size;
  int32_t q_stride_n = 0;
  int32_t q_stride_h = 0;
  // Of scales that only a cache of 4-bit values has.
  uint32_t k_sf_stride_page = 0;
  uint32_t k_sf_stride_n = 0;
  uint32_t k_sf_stride_h = 0;
  uint32_t v_sf_stride_page = 0;
  uint32_t v_sf_stride_n = 0;
  uint32_t v_sf_stride_h = 0;
  int32_t* request_indices = nullptr;
  int32_t* qo_tile_indices = nullptr;
  int32_t* kv_tile_indices = nullptr;
  bool* block_valid_mask = nullptr;
  int32_t* kv_chunk_size_ptr = nullptr;
  bool partition_kv = false;
  // Ours.
  const AttentionTile* tiles = nullptr;
  const uint64_t* ancestors = nullptr;
  float scale_log2 = 0;  // scores are kept in units of log2(e), for exponentials of base 2
};

// The mask. It runs under MaskMode::kCustom, in which every step of the walk is masked. kNone masks
// the last, unfilled step alone, which shows a row what it must not see; kCausal masks from the
// step on that holds the tile's first row, but a tree's rows must not see some slots before it
// either (siblings of their ancestors), as soon as these fill a step.
//
// Masked scores become -inf and have weight 0, but 0 times infinity or NaN is NaN: what lies in the
// walked slots must be finite even where a row does not see it.
struct TreeVariant : flashinfer::AttentionVariantBase {
  static constexpr bool use_softmax = true;
  // The scores come out of LogitsTransform in their final unit, so FlashInfer has nothing left to
  // scale. Were this the scale, its exp2(m_old * scale - round(m_new * scale)) would be fused and
  // differ from 1 where m_old is m_new: every step in which a row sees nothing would perturb it.
  static constexpr float sm_scale_log2 = 1.0f;

  uint32_t qo_len, kv_len, window_left;
  AttentionTile tile;

  template <typename Params>
  __device__ TreeVariant(const Params& params, uint32_t tile_index, uint8_t*)
      : tile(params.tiles[tile_index]) {
    qo_len = static_cast<uint32_t>(tile.rows);
    kv_len = static_cast<uint32_t>(tile.walk);
    window_left = kv_len;  // no window
  }

  // Rounded by itself: a product fused with what follows would not be the one in the maximum.
  template <typename Params, typename T>
  __device__ __forceinline__ T LogitsTransform(const Params& params, T score, uint32_t, uint32_t,
                                               uint32_t, uint32_t, uint32_t) {
    return __fmul_rn(score, params.scale_log2);
  }

  // FlashInfer has seen to slots behind the walk, but not to lines behind the tile's last row.
  template <typename Params>
  __device__ __forceinline__ bool LogitsMask(const Params& params, uint32_t, uint32_t row,
                                             uint32_t slot, uint32_t, uint32_t) {
    return Sees(tile, params.ancestors, static_cast<int32_t>(row), static_cast<int32_t>(slot));
  }
};

template <typename T>
T* At(const TreeAttentionCall& call, size_t offset, int32_t index = 0) {
  return reinterpret_cast<T*>(call.plan + offset) + index;
}

template <typename T, typename Out, int kHeadDim>
TreeParams<T, Out> MakeParams(const TreeAttentionCall& call) {
  const PlanLayout& at = *call.layout;
  TreeParams<T, Out> params;
  params.q = static_cast<T*>(const_cast<void*>(call.queries));
  params.paged_kv = flashinfer::paged_kv_t<T, int32_t>(
      static_cast<uint32_t>(call.kv_heads), static_cast<uint32_t>(call.block_size), kHeadDim,
      static_cast<uint32_t>(at.tile_count), flashinfer::QKVLayout::kNHD,
      static_cast<T*>(const_cast<void*>(call.keys)),
      static_cast<T*>(const_cast<void*>(call.values)), At<int32_t>(call, at.blocks),
      At<int32_t>(call, at.block_first), nullptr);
  params.q_indptr = At<int32_t>(call, at.query_first);
  params.o_indptr = At<int32_t>(call, at.output_first);
  if (call.partial) {
    params.o = reinterpret_cast<Out*>(call.partials);
    params.lse = call.weights;
  } else {
    params.o = static_cast<Out*>(call.out);
  }
  params.group_size = flashinfer::uint_fastdiv(static_cast<uint32_t>(call.heads / call.kv_heads));
  params.q_stride_n = call.heads * kHeadDim;
  params.q_stride_h = kHeadDim;
  params.request_indices = At<int32_t>(call, at.item_tile, call.wave.first_item);
  params.qo_tile_indices = At<int32_t>(call, at.item_part, call.wave.first_item);
  params.kv_tile_indices = At<int32_t>(call, at.item_chunk, call.wave.first_item);
  params.block_valid_mask = At<bool>(call, at.item_valid, call.wave.first_item);
  params.kv_chunk_size_ptr = At<int32_t>(call, at.chunk);
  params.partition_kv = call.partial;
  params.tiles = At<AttentionTile>(call, at.tiles);
  params.ancestors = At<uint64_t>(call, at.ancestors);
  params.scale_log2 = call.scale * flashinfer::math::log2e;
  return params;
}

// FlashInfer's kernel of one shape.
template <typename T, typename Out, int kHeadDim, int kTileQ>
struct TileKernel {
  static constexpr uint32_t kWarpsQ = flashinfer::get_num_warps_q(kTileQ);
  static constexpr uint32_t kWarpsKv = flashinfer::get_num_warps_kv(kTileQ);
  static constexpr uint32_t kMmaQ = flashinfer::get_num_mma_q(kTileQ);
  // Sixteens of slots that a warp takes at a step: as many as FlashInfer's dispatcher gives it
  // where two thread blocks share the 164 KiB of an A100 or the 228 KiB of an H100 or B200.
  static constexpr uint32_t kMmaKv = kTileQ == 16 ? 256 / kHeadDim : 8 / kMmaQ;
  static constexpr uint32_t kMmaD = kHeadDim / 16;
  using Params = TreeParams<T, Out>;
  using Traits =
      flashinfer::KernelTraits<flashinfer::MaskMode::kCustom, kTileQ, kMmaQ, kMmaKv, kMmaD, kMmaD,
                               kWarpsQ, kWarpsKv, flashinfer::PosEncodingMode::kNone, T, T, Out,
                               float, int32_t, TreeVariant>;
  static_assert(!Traits::IsInvalid());
  static constexpr size_t kShared = sizeof(typename Traits::SharedStoragePaged);
  static_assert(2 * (kShared + 1024) <= size_t{164} * 1024);

  static cudaError_t Prepare() {
    return cudaFuncSetAttribute(
        flashinfer::BatchPrefillWithPagedKVCacheKernel<true, Traits, Params>,
        cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
  }

  static cudaError_t Launch(const TreeAttentionCall& call, base::cuda::Stream stream) {
    const dim3 grid(static_cast<unsigned>(call.wave.items), 1,
                    static_cast<unsigned>(call.kv_heads));
    flashinfer::BatchPrefillWithPagedKVCacheKernel<true, Traits, Params>
        <<<grid, dim3(32, kWarpsQ, kWarpsKv), kShared, stream>>>(
            MakeParams<T, Out, kHeadDim>(call));
    return cudaGetLastError();
  }
};

template <typename T, typename Out, int kHeadDim>
cudaError_t PrepareTiles() {
  cudaError_t error = TileKernel<T, Out, kHeadDim, 16>::Prepare();
  if (error == cudaSuccess) error = TileKernel<T, Out, kHeadDim, 64>::Prepare();
  if (error == cudaSuccess) error = TileKernel<T, Out, kHeadDim, 128>::Prepare();
  return error;
}

template <typename T, typename Out, int kHeadDim>
cudaError_t LaunchTiles(const TreeAttentionCall& call, base::cuda::Stream stream) {
  switch (call.tile_q) {
    case 16:
      return TileKernel<T, Out, kHeadDim, 16>::Launch(call, stream);
    case 64:
      return TileKernel<T, Out, kHeadDim, 64>::Launch(call, stream);
    default:
      return TileKernel<T, Out, kHeadDim, 128>::Launch(call, stream);
  }
}

// Each thread takes four values of a row's head; a head of one row is merged by 128 threads, which
// take its partial results in turn.
template <typename T, int kHeadDim>
struct MergeKernel {
  static constexpr uint32_t kValues = 4;
  static constexpr uint32_t kThreads = 128;
  static constexpr uint32_t kStages = 4;
  static constexpr uint32_t kAcross = kHeadDim / kValues;
  static constexpr uint32_t kDown = kThreads / kAcross;
  static constexpr size_t kShared =
      kStages * kDown * kHeadDim * sizeof(float) + kThreads * sizeof(float);
  static constexpr int64_t kBlocksAProcessor = 16;

  static cudaError_t Prepare() {
    return cudaFuncSetAttribute(
        flashinfer::PersistentVariableLengthMergeStatesKernel<kValues, kAcross, kDown, kStages,
                                                              float, T, int32_t>,
        cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared));
  }

  static cudaError_t Launch(const TreeAttentionCall& call, base::cuda::Stream stream) {
    const int64_t blocks =
        std::min(int64_t{call.wave.rows} * call.heads, kBlocksAProcessor * call.processors);
    T* const out = static_cast<T*>(call.out) + int64_t{call.wave.first_row} * call.heads * kHeadDim;
    flashinfer::PersistentVariableLengthMergeStatesKernel<kValues, kAcross, kDown, kStages, float,
                                                          T, int32_t>
        <<<static_cast<unsigned>(blocks), dim3(kAcross, kDown), kShared, stream>>>(
            call.partials, call.weights,
            At<int32_t>(call, call.layout->merge_first, call.wave.first_merge), out, nullptr,
            static_cast<uint32_t>(call.wave.rows), const_cast<uint32_t*>(call.row_count),
            static_cast<uint32_t>(call.heads));
    return cudaGetLastError();
  }
};

template <AttentionType kType>
using ElementOf = std::conditional_t<kType == AttentionType::kFloat16, half, nv_bfloat16>;

template <AttentionType kType, int kHeadDim>
absl::Status PrepareTreeAttention() {
  using T = ElementOf<kType>;
  cudaError_t error = PrepareTiles<T, T, kHeadDim>();
  if (error == cudaSuccess) error = PrepareTiles<T, float, kHeadDim>();
  if (error == cudaSuccess) error = MergeKernel<T, kHeadDim>::Prepare();
  return base::cuda::ToStatus(error, "kernels of tree attention");
}

template <AttentionType kType, int kHeadDim>
absl::Status EnqueueTreeAttention(const TreeAttentionCall& call, base::cuda::Stream stream) {
  using T = ElementOf<kType>;
  try {  // FlashInfer's way to say what it cannot do
    if (!call.partial) {
      return base::cuda::ToStatus(LaunchTiles<T, T, kHeadDim>(call, stream), "tree attention");
    }
    const cudaError_t error = LaunchTiles<T, float, kHeadDim>(call, stream);
    if (error != cudaSuccess) return base::cuda::ToStatus(error, "tree attention in chunks");
    return base::cuda::ToStatus(MergeKernel<T, kHeadDim>::Launch(call, stream),
                                "merge of tree attention");
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("tree attention: ", e.what()));
  }
}

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_KERNEL_CUH_
