#ifndef SPECFABRIC_MODEL_REFERENCE_LINEAR_H_
#define SPECFABRIC_MODEL_REFERENCE_LINEAR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "model/checkpoint/config.h"
#include "model/linear.h"

namespace specfabric::model::reference {

// libtorch's linear, as the oracle of the packed one. Its sums have no fixed order, so `parts`
// means nothing here, and ranks change the last bits. If batch-invariant, every product is of
// 4 rows, some of them zeros: which kernel MKL takes, and so a row's bits, depends on their number.
absl::StatusOr<std::unique_ptr<Linear>> MakeLinear(const LinearShape& shape, DataType dtype,
                                                   bool batch_invariant, const WeightReader& read);

// False in a build without libtorch (SPECFABRIC_TORCH=OFF), where every operation here fails.
bool IsBuilt();

// Threads that libtorch may use for operations called by this thread.
void SetThreads(int threads);

}  // namespace specfabric::model::reference

#endif  // SPECFABRIC_MODEL_REFERENCE_LINEAR_H_
