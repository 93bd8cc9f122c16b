#include "model/cpu/kernels.h"

namespace specfabric::model::cpu {
namespace {

const Kernels* const kAll[] = {
#if defined(__x86_64__)
    &kAmxKernels,     &kAvx512Bf16Kernels,
    &kAvx512Kernels,  &kAvx2Kernels,
#endif
    &kGenericKernels, nullptr};

const Kernels* Choose() {
  const Kernels* const* best = kAll;
  while (!(*best)->supported()) ++best;  // the generic set always is
  return *best;
}

}  // namespace

const Kernels& BestKernels() {
  static const Kernels* const best = Choose();
  return *best;
}

const Kernels* const* AllKernels() { return kAll; }

}  // namespace specfabric::model::cpu
