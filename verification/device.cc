// The device's implementations; a build without CUDA has none.

#include "verification/device_draft_rows.h"
#include "verification/device_verifier.h"
#if defined(SPECFABRIC_CUDA)
#include "verification/cuda/cuda_verifier.h"
#include "verification/cuda/draft_row_maker.h"
#endif

namespace specfabric::verification {

#if defined(SPECFABRIC_CUDA)
std::unique_ptr<DeviceVerifier> DeviceVerifier::Create(const base::cuda::Device* device) {
  if (device == nullptr) return nullptr;
  return std::make_unique<cuda::CudaVerifier>(device);
}

std::unique_ptr<DeviceDraftRows> DeviceDraftRows::Create(const base::cuda::Device* device) {
  if (device == nullptr) return nullptr;
  return std::make_unique<cuda::DraftRowMaker>(device);
}
#else
std::unique_ptr<DeviceVerifier> DeviceVerifier::Create(const base::cuda::Device* /*device*/) {
  return nullptr;
}

std::unique_ptr<DeviceDraftRows> DeviceDraftRows::Create(const base::cuda::Device* /*device*/) {
  return nullptr;
}
#endif

}  // namespace specfabric::verification
