#include "model/cuda/product_choice.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace specfabric::model::cuda {
namespace {

constexpr float kClearlyFaster = 0.98f;

bool Shares(ProductKernel kernel) {
  return kernel != ProductKernel::kRows8 && kernel != ProductKernel::kRows16;
}

}  // namespace

std::string Name(const ProductChoice& choice) {
  if (choice.blas) return "cublas";
  return absl::StrCat(Name(choice.kernel),
                      Shares(choice.kernel) && !choice.split ? " unsplit" : "");
}

size_t RowClassOf(int32_t rows) {
  const auto* const found = std::lower_bound(kRowClasses.begin(), kRowClasses.end() - 1, rows);
  return static_cast<size_t>(found - kRowClasses.begin());
}

ProductChoice RuleOfThumb(int32_t rows, int32_t inputs) {
  constexpr int32_t kMostRows[] = {8, 16, 32, 64};
  static_assert(std::size(kMostRows) + 1 == std::size(kProductKernels));
  for (size_t i = 0; i < std::size(kMostRows); ++i) {
    const ProductKernel kernel = kProductKernels[i];
    if (rows <= kMostRows[i] && Takes(kernel, rows, inputs)) return {.kernel = kernel};
  }
  return {.kernel = ProductKernel::kTile128};
}

std::vector<ProductChoice> CandidatesFor(int32_t rows, int32_t inputs, bool blas) {
  std::vector<ProductChoice> candidates = {RuleOfThumb(rows, inputs)};
  for (const ProductKernel kernel : kProductKernels) {
    if (!Takes(kernel, rows, inputs)) continue;
    for (const bool split : {true, false}) {
      const ProductChoice choice = {.kernel = kernel, .split = split};
      if (!split && !Shares(kernel)) continue;
      if (choice != candidates.front()) candidates.push_back(choice);
    }
  }
  if (blas) candidates.push_back({.blas = true});
  return candidates;
}

absl::StatusOr<ProductWinner> FastestOf(const std::vector<ProductChoice>& candidates,
                                        const ProductTrial& trial) {
  ProductWinner winner;
  for (const ProductChoice& candidate : candidates) {
    if (!candidate.blas) {
      const absl::StatusOr<bool> same = trial.same(candidate);
      if (!same.ok()) return same.status();
      if (!*same) {
        winner.wrong.push_back(candidate);
        continue;
      }
    }
    const absl::StatusOr<float> took = trial.microseconds(candidate);
    if (!took.ok()) return took.status();
    const bool first = winner.microseconds == 0;
    if (!first && *took >= winner.microseconds * kClearlyFaster) continue;
    winner.choice = candidate;
    winner.microseconds = *took;
  }
  return winner;
}

}  // namespace specfabric::model::cuda
