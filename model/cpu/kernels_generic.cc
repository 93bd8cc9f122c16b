#define SPECFABRIC_KERNELS kGenericKernels
#define SPECFABRIC_KERNELS_NAME "generic"
#define SPECFABRIC_KERNELS_SUPPORTED (true)
#include "model/cpu/kernels.inc"
