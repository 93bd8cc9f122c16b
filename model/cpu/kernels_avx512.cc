#define SPECFABRIC_KERNELS kAvx512Kernels
#define SPECFABRIC_KERNELS_NAME "avx512"
#define SPECFABRIC_KERNELS_SUPPORTED (__builtin_cpu_supports("avx512f"))
#include "model/cpu/kernels.inc"
