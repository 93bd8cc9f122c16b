#include "model/cuda/product.h"

#include "absl/strings/str_cat.h"

namespace specfabric::model::cuda {

const char* Name(ProductKernel kernel) {
  switch (kernel) {
    case ProductKernel::kRows8:
      return "rows8";
    case ProductKernel::kRows16:
      return "rows16";
    case ProductKernel::kRows32:
      return "rows32";
    case ProductKernel::kRows32Wide:
      return "rows32wide";
    case ProductKernel::kRows64:
      return "rows64";
    case ProductKernel::kRows64Wide:
      return "rows64wide";
    case ProductKernel::kTile64:
      return "tile64";
    case ProductKernel::kTile128:
      return "tile128";
  }
  return "unknown";
}

bool Takes(ProductKernel kernel, int32_t rows, int32_t inputs) {
  constexpr int32_t kPiece = 8;  // inputs
  const bool whole = inputs % kPiece == 0;
  switch (kernel) {
    case ProductKernel::kRows8:
      return rows <= 8 && whole;
    case ProductKernel::kRows16:
      return rows <= 16 && whole;
    case ProductKernel::kRows32:
    case ProductKernel::kRows32Wide:
      return rows <= 32 && whole;
    case ProductKernel::kRows64:
    case ProductKernel::kRows64Wide:
      return rows <= 64 && whole;
    case ProductKernel::kTile64:
      return true;
    case ProductKernel::kTile128:
      return whole;
  }
  return false;
}

absl::Status EnqueueProduct(ProductKernel kernel, const ProductArgs& args,
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
  switch (kernel) {
    case ProductKernel::kRows8:
      return EnqueueSmallProduct(args, stream);
    case ProductKernel::kTile64:
    case ProductKernel::kTile128:
      return EnqueueTiledProduct(kernel, args, workspace, stream);
    default:
      return EnqueueStreamedProduct(kernel, args, workspace, stream);
  }
}

absl::Status PrepareProducts() {
  absl::Status status = PrepareStreamedProducts();
  status.Update(PrepareTiledProducts());
  return status;
}

}  // namespace specfabric::model::cuda
