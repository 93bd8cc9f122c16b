#define SPECFABRIC_KERNELS kAvx2Kernels
#define SPECFABRIC_KERNELS_NAME "avx2"
#define SPECFABRIC_KERNELS_SUPPORTED \
  (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#include "model/cpu/kernels.inc"
