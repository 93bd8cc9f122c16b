#include "base/cuda/device.h"

#include "base/cuda/error.h"

namespace specfabric::base::cuda {

absl::StatusOr<std::unique_ptr<Device>> Device::Open(int32_t ordinal) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || ordinal >= devices) {
    return absl::FailedPreconditionError(absl::StrCat(
        "GPU ", ordinal, " is asked for, and this process sees ", devices,
        error != cudaSuccess ? absl::StrCat(" (", cudaGetErrorString(error), ")") : ""));
  }
  std::unique_ptr<Device> device(new Device(ordinal));
  if (absl::Status status = device->Start(); !status.ok()) return status;
  return device;
}

absl::Status Device::Start() {
  if (absl::Status current = MakeCurrent(); !current.ok()) return current;
  cudaDeviceProp properties = {};
  absl::Status status =
      ToStatus(cudaGetDeviceProperties(&properties, ordinal_), "properties of the device");
  name_ = absl::StrCat(properties.name, " sm_", properties.major, properties.minor);
  status.Update(ToStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream"));
  return status;
}

Device::~Device() {
  if (!MakeCurrent().ok()) return;
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::Status Device::MakeCurrent() const {
  return ToStatus(cudaSetDevice(ordinal_), "choice of the device");
}

absl::StatusOr<Device::Memory> Device::ReadMemory() const {
  size_t free = 0, total = 0;
  absl::Status status = MakeCurrent();
  status.Update(ToStatus(cudaMemGetInfo(&free, &total), "asking for free memory"));
  if (!status.ok()) return status;
  return Memory{static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

absl::Status Device::Finish() const {
  return ToStatus(cudaStreamSynchronize(stream_), "what was enqueued");
}

absl::Status Device::ToDevice(const void* host, size_t bytes, void* device) const {
  return ToStatus(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_),
                  "a copy to the device");
}

absl::Status Device::ToHost(const void* device, size_t bytes, void* host) const {
  return ToStatus(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_),
                  "a copy to the host");
}

absl::Status Device::Copy(const void* from, size_t bytes, void* to) const {
  return ToStatus(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_),
                  "a copy on the device");
}

absl::Status Device::Clear(void* memory, size_t bytes) const {
  return ToStatus(cudaMemsetAsync(memory, 0, bytes, stream_), "zeros");
}

}  // namespace specfabric::base::cuda
