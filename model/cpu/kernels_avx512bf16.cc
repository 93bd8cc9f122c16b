#define SPECFABRIC_KERNELS kAvx512Bf16Kernels
#define SPECFABRIC_KERNELS_NAME "avx512bf16"
#define SPECFABRIC_KERNELS_SUPPORTED \
  (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw"))
#include "model/cpu/kernels.inc"
