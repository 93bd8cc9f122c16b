#ifndef SPECFABRIC_MODEL_CUDA_PRODUCT_CHOICE_H_
#define SPECFABRIC_MODEL_CUDA_PRODUCT_CHOICE_H_

// Which kernel makes a product of so many rows: by a rule of thumb, or by trying them on the GPU at
// hand.

#include <array>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/cuda/product.h"

namespace specfabric::model::cuda {

// Row counts that are treated alike: up to kRowClasses[i] rows, and the last also for more.
constexpr std::array<int32_t, 7> kRowClasses = {8, 16, 32, 64, 128, 256, 512};
template <typename T>
using RowClasses = std::array<T, kRowClasses.size()>;
size_t RowClassOf(int32_t rows);

// The kernel of the fewest rows that takes them all, or the one of the largest tiles.
ProductKernel RuleOfThumb(int32_t rows, int32_t inputs);

// The candidates of a trial for a class of rows, the rule of thumb first.
std::vector<ProductKernel> CandidatesFor(int32_t rows, int32_t inputs);

// How a trial is made; the calls for one candidate follow each other.
struct ProductTrial {
  // Whether the candidate's results are those of the first one, to the bit.
  absl::FunctionRef<absl::StatusOr<bool>(ProductKernel)> same;
  absl::FunctionRef<absl::StatusOr<float>(ProductKernel)> microseconds;
};

struct ProductWinner {
  ProductKernel kernel = ProductKernel::kTile64;
  float microseconds = 0;
  std::vector<ProductKernel> wrong;  // those with other bits, which are not taken
};

// The fastest candidate with the first one's bits. A later candidate must be faster by 2 %, so that
// noise does not choose. Errors are those of the trial.
absl::StatusOr<ProductWinner> FastestOf(const std::vector<ProductKernel>& candidates,
                                        const ProductTrial& trial);

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_PRODUCT_CHOICE_H_
