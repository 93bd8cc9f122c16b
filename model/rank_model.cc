#include "model/rank_model.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "model/cpu/cpu_transformer.h"
#if defined(SPECFABRIC_CUDA)
#include "model/cuda/cuda_transformer.h"
#endif

namespace specfabric::model {

absl::StatusOr<DeviceKind> ParseDeviceKind(std::string_view name) {
  if (name == "cpu") return DeviceKind::kCpu;
  if (name == "cuda") return DeviceKind::kCuda;
  return absl::InvalidArgumentError(
      absl::StrCat("device '", std::string(name), "'; allowed: cpu, cuda"));
}

absl::StatusOr<std::unique_ptr<RankModel>> RankModel::Load(const std::string& model_dir,
                                                           const RankOptions& options,
                                                           Communicator* communicator) {
  if (options.device == DeviceKind::kCpu) {
    return CpuTransformer::Load(model_dir, options, communicator);
  }
#if defined(SPECFABRIC_CUDA)
  return cuda::CudaTransformer::Load(model_dir, options, communicator);
#else
  return absl::FailedPreconditionError(
      "this build has no kernels for GPUs; those of `cmake --preset cuda` do");
#endif
}

}  // namespace specfabric::model
