#ifndef SPECFABRIC_BASE_CUDA_TENSOR_CORE_H_
#define SPECFABRIC_BASE_CUDA_TENSOR_CORE_H_

// What a processor of a GPU has beside arithmetic, as functions: tensor cores, copies to shared
// memory that run by themselves, and launches that overlap. PTX on a GPU (compute capability 8.0
// and on); for the emulator each has a substitute in plain C++ (tests/cuda/emulator/tensor_core.h),
// which a kernel sees in its place. For .cu files alone.

#include <cstdint>

#include "base/bfloat16.h"
#include "base/cuda/reduce.h"
#include "base/cuda/tensor_type.h"

namespace specfabric::base::cuda {

// Shared memory of a block on Hopper and Blackwell, and what the kernels here may ask of it: an
// A100 has 163 KiB, which one that asks for more cannot be launched on.
constexpr int kMostSharedBytes = 227 << 10;

#ifndef SPECFABRIC_EMULATED_GPU

// d += a b, of a warp together: a is 16 x 16, b 16 x 8, d 16 x 8 and float32 (PTX ISA,
// mma.sync.m16n8k16). With g = lane / 4 and q = lane % 4 a lane holds, lower halves first,
//   a[0]: row g,  columns 2q, 2q + 1;      a[1]: row g + 8, the same columns;
//   a[2], a[3]: the same rows, columns 2q + 8, 2q + 9;
//   b[0]: rows 2q, 2q + 1 of column g;     b[1]: rows 2q + 8, 2q + 9;
//   d[0], d[1]: row g, columns 2q, 2q + 1; d[2], d[3]: row g + 8.
// The order in which the 16 products are added is the GPU's, the same for every row and column.
template <TensorType kType>
__device__ inline void MultiplyAdd(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&d)[4]) {
  if constexpr (kType == TensorType::kBFloat16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

// The 16 bits of a value, rounded to nearest, ties to even.
template <TensorType kType>
__device__ inline uint16_t RoundTo(float value) {
  if constexpr (kType == TensorType::kBFloat16) return RoundToBFloat16(value);
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// 16 bytes of global memory that no kernel changes and that are read once a launch: past the
// processor's cache, with a hint to fetch what lies beside them. Aligned to 16 bytes.
__device__ inline uint4 LoadOnce(const void* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

// Begins a copy of 16 bytes of global memory to shared memory, or of zeros if not `valid`; `from`
// is then not read, but must be an address. Both are aligned to 16 bytes. No other thread, nor this
// one, sees the bytes before AwaitCopies and a barrier.
__device__ inline void StartCopy16(void* to, const void* from, bool valid) {
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
// Makes a group of this thread's copies that were begun since the last one; it may be empty.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending of this thread's latest groups have not been copied.
template <int kPending>
__device__ inline void AwaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Programmatic dependent launch (launch.h), on Hopper and later; nothing on an A100. A kernel that
// is launched to overlap calls AwaitInputs before it reads anything that an earlier kernel wrote,
// and before it writes anything that one may read: it returns once all earlier kernels of the
// stream have ended and their writes are seen.
__device__ inline void AwaitInputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the blocks of the stream's next kernel begin where there is room beside this one's, as far
// as their own AwaitInputs. Without it they begin when this kernel's blocks have ended.
__device__ inline void LetNextBegin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The block's shared memory whose size the launch says, aligned to 128 bytes.
__device__ inline void* DynamicShared() {
  extern __shared__ __align__(128) unsigned char dynamic_shared[];
  return dynamic_shared;
}

#endif  // SPECFABRIC_EMULATED_GPU

}  // namespace specfabric::base::cuda

#endif  // SPECFABRIC_BASE_CUDA_TENSOR_CORE_H_
