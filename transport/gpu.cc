#include "transport/gpu.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace specfabric::transport {
namespace {

// Of CUDA's driver API (cuda.h), whose ABI is fixed.
using CuResult = int;
using CuDevice = int;
using CuContext = void*;
using CuPointer = unsigned long long;
constexpr CuResult kCuSuccess = 0;

struct Driver {
  CuResult (*init)(unsigned flags) = nullptr;
  CuResult (*count)(int* devices) = nullptr;
  CuResult (*device)(CuDevice* device, int ordinal) = nullptr;
  CuResult (*retain)(CuContext* context, CuDevice device) = nullptr;
  CuResult (*set_current)(CuContext context) = nullptr;
  CuResult (*copy_to_gpu)(CuPointer to, const void* from, size_t bytes) = nullptr;
  CuResult (*copy_from_gpu)(void* to, CuPointer from, size_t bytes) = nullptr;
  CuResult (*finish_stream)(void* stream) = nullptr;
};

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

absl::Status Refused(const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat("no GPU can be used: ", why));
}

absl::Status Load(const char* library, Driver* driver) {
  // Never closed: contexts outlive the call.
  void* const loaded = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  if (loaded == nullptr) {
    return Refused(absl::StrCat(library, ", of NVIDIA's driver, cannot be loaded"));
  }
  if (!Find(loaded, "cuInit", &driver->init) || !Find(loaded, "cuDeviceGetCount", &driver->count) ||
      !Find(loaded, "cuDeviceGet", &driver->device) ||
      !Find(loaded, "cuDevicePrimaryCtxRetain", &driver->retain) ||
      !Find(loaded, "cuCtxSetCurrent", &driver->set_current) ||
      !Find(loaded, "cuMemcpyHtoD_v2", &driver->copy_to_gpu) ||
      !Find(loaded, "cuMemcpyDtoH_v2", &driver->copy_from_gpu) ||
      !Find(loaded, "cuStreamSynchronize", &driver->finish_stream)) {
    return Refused(absl::StrCat(library, " is not NVIDIA's driver"));
  }
  return absl::OkStatus();
}

absl::Status Copied(CuResult result) {
  if (result == kCuSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("a copy of GPU memory: the driver's error ", result));
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool Exists(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0;
}

}  // namespace

absl::Status UseGpu(int ordinal, const char* library) {
  Driver driver;
  if (absl::Status loaded = Load(library, &driver); !loaded.ok()) return loaded;
  int devices = 0;
  CuResult result = driver.init(0);
  if (result == kCuSuccess) result = driver.count(&devices);
  if (result != kCuSuccess) return Refused(absl::StrCat("the driver's error ", result));
  if (ordinal < 0 || ordinal >= devices) {
    return Refused(absl::StrCat("GPU ", ordinal, " is asked for, and this process sees ", devices));
  }
  CuDevice device = 0;
  CuContext context = nullptr;
  result = driver.device(&device, ordinal);
  if (result == kCuSuccess) result = driver.retain(&context, device);
  if (result == kCuSuccess) result = driver.set_current(context);
  if (result != kCuSuccess) return Refused(absl::StrCat("the driver's error ", result));
  return absl::OkStatus();
}

absl::Status CopyToGpu(const void* host, size_t bytes, void* gpu, const char* library) {
  Driver driver;
  if (absl::Status loaded = Load(library, &driver); !loaded.ok()) return loaded;
  // Such a copy may return before the bytes have arrived ("API synchronization behavior" of CUDA's
  // driver API), and no other stream would wait for them.
  CuResult result = driver.copy_to_gpu(reinterpret_cast<CuPointer>(gpu), host, bytes);
  if (result == kCuSuccess) result = driver.finish_stream(/*stream=*/nullptr);
  return Copied(result);
}

absl::Status CopyFromGpu(const void* gpu, size_t bytes, void* host, const char* library) {
  Driver driver;
  if (absl::Status loaded = Load(library, &driver); !loaded.ok()) return loaded;
  return Copied(driver.copy_from_gpu(host, reinterpret_cast<CuPointer>(gpu), bytes));
}

GpuDirect FindGpuDirect(const std::string& root) {
  GpuDirect found;
  // The second is the module's name before it came with the driver.
  found.peermem =
      Exists(root + "/sys/module/nvidia_peermem") || Exists(root + "/sys/module/nv_peer_mem");
  const std::string driver = ReadFile(root + "/proc/driver/nvidia/version");
  const std::string release = ReadFile(root + "/proc/sys/kernel/osrelease");
  int major = 0, minor = 0;
  const bool read = std::sscanf(release.c_str(), "%d.%d", &major, &minor) == 2;
  const bool exports = read && (major > 5 || (major == 5 && minor >= 12));
  found.dma_buf = exports && absl::StrContains(driver, "Open Kernel Module");
  if (found.found()) {
    found.description =
        absl::StrCat(found.peermem ? "nvidia-peermem" : "",
                     found.peermem && found.dma_buf ? " and " : "", found.dma_buf ? "dma-buf" : "");
  } else if (driver.empty()) {
    found.description = "NVIDIA's kernel driver is not loaded";
  } else {
    found.description =
        "nvidia-peermem is not loaded, and dma-bufs need the driver's open kernel modules and "
        "Linux 5.12";
  }
  return found;
}

}  // namespace specfabric::transport
