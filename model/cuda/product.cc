#include "model/cuda/product.h"

#include "absl/strings/str_cat.h"

namespace specfabric::model::cuda {

const char* Name(ProductKernel kernel) {
  switch (kernel) {
    case ProductKernel::kRows8:
      return "rows8";
    case ProductKernel::kRows16:
      return "rows16";
    case ProductKernel::kTile32:
      return "tile32";
    case ProductKernel::kTile64:
      return "tile64";
    case ProductKernel::kTile128:
      return "tile128";
  }
  return "unknown";
}

bool Takes(ProductKernel kernel, int32_t rows, int32_t inputs) {
  constexpr int32_t kPiece = 8;  // inputs
  switch (kernel) {
    case ProductKernel::kRows8:
      return rows <= kTileRows && inputs % kPiece == 0;
    case ProductKernel::kRows16:
      return rows <= 2 * kTileRows && inputs % kPiece == 0;
    default:
      return true;
  }
}

absl::Status EnqueueProduct(ProductKernel kernel, bool split, const ProductArgs& args,
                            const ProductWorkspace& workspace, base::cuda::Stream stream) {
  if (args.rows < 1 || args.outputs < 1 || args.inputs < 1) {
    return absl::InvalidArgumentError(absl::StrCat("a product of ", args.rows, " rows, ",
                                                   args.outputs, " outputs and ", args.inputs,
                                                   " inputs; allowed: at least 1 of each"));
  }
  if (!Takes(kernel, args.rows, args.inputs)) {
    return absl::InvalidArgumentError(absl::StrCat("a product of ", args.rows, " rows and ",
                                                   args.inputs, " inputs by ", Name(kernel)));
  }
  const bool small = kernel == ProductKernel::kRows8 || kernel == ProductKernel::kRows16;
  return small ? EnqueueSmallProduct(kernel, args, stream)
               : EnqueueTiledProduct(kernel, split, args, workspace, stream);
}

absl::Status PrepareProducts() { return PrepareTiledProducts(); }

}  // namespace specfabric::model::cuda
