#include "model/cuda/product_choice.h"

#include <algorithm>

namespace specfabric::model::cuda {
namespace {

// Up to so many rows tiles, which share weights among rows, gain nothing; on an H200 they were up
// to 5 % faster alone, and slower among the other kernels of a pass.
constexpr int32_t kMostStreamedRows = 64;
constexpr float kClearlyFaster = 0.98f;

}  // namespace

size_t RowClassOf(int32_t rows) {
  const auto* const found = std::lower_bound(kRowClasses.begin(), kRowClasses.end() - 1, rows);
  return static_cast<size_t>(found - kRowClasses.begin());
}

ProductKernel RuleOfThumb(int32_t rows, int32_t inputs) {
  constexpr ProductKernel kByRows[] = {ProductKernel::kRows8, ProductKernel::kRows16,
                                       ProductKernel::kRows32, ProductKernel::kRows64,
                                       ProductKernel::kTile128};
  for (const ProductKernel kernel : kByRows) {
    if (Takes(kernel, rows, inputs)) return kernel;
  }
  return ProductKernel::kTile64;
}

std::vector<ProductKernel> CandidatesFor(int32_t rows, int32_t inputs) {
  std::vector<ProductKernel> candidates = {RuleOfThumb(rows, inputs)};
  for (const ProductKernel kernel : kProductKernels) {
    const bool tiled = kernel == ProductKernel::kTile64 || kernel == ProductKernel::kTile128;
    if (tiled && rows <= kMostStreamedRows) continue;
    if (Takes(kernel, rows, inputs) && kernel != candidates.front()) candidates.push_back(kernel);
  }
  return candidates;
}

absl::StatusOr<ProductWinner> FastestOf(const std::vector<ProductKernel>& candidates,
                                        const ProductTrial& trial) {
  ProductWinner winner;
  for (const ProductKernel candidate : candidates) {
    const absl::StatusOr<bool> same = trial.same(candidate);
    if (!same.ok()) return same.status();
    if (!*same) {
      winner.wrong.push_back(candidate);
      continue;
    }
    const absl::StatusOr<float> took = trial.microseconds(candidate);
    if (!took.ok()) return took.status();
    const bool first = winner.microseconds == 0;
    if (!first && *took >= winner.microseconds * kClearlyFaster) continue;
    winner.kernel = candidate;
    winner.microseconds = *took;
  }
  return winner;
}

}  // namespace specfabric::model::cuda
