// What stands in the place of libtorch's operations where SPECFABRIC_TORCH is OFF.

#include "model/reference/attention.h"
#include "model/reference/linear.h"

namespace specfabric::model::reference {
namespace {

absl::Status NotBuilt() {
  return absl::UnimplementedError(
      "the reference kernels need libtorch, and this program was built without it "
      "(SPECFABRIC_TORCH=OFF)");
}

}  // namespace

absl::Status Attention(const AttentionInputs& /*inputs*/, float* /*out*/) { return NotBuilt(); }

absl::StatusOr<std::unique_ptr<Linear>> MakeLinear(const LinearShape& /*shape*/, DataType /*dtype*/,
                                                   bool /*batch_invariant*/,
                                                   const WeightReader& /*read*/) {
  return NotBuilt();
}

bool IsBuilt() { return false; }

void SetThreads(int /*threads*/) {}

}  // namespace specfabric::model::reference
