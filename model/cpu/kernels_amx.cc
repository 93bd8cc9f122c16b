#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

// Linux gives a process its tile registers when it asks for them.
bool HasTiles() {
  constexpr unsigned kTileBits = 1u << 22 | 1u << 24;     // leaf 7: AMX-BF16, AMX-TILE
  constexpr int kRequestPermission = 0x1023, kData = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kTileBits) == kTileBits &&
         syscall(SYS_arch_prctl, kRequestPermission, kData) == 0;
}

}  // namespace

#define SPECFABRIC_KERNELS kAmxKernels
#define SPECFABRIC_KERNELS_NAME "amx"
#define SPECFABRIC_KERNELS_SUPPORTED \
  (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") && HasTiles())
#include "model/cpu/kernels.inc"
