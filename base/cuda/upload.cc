#include "base/cuda/upload.h"

#include <cstring>
#include <utility>

namespace specfabric::base::cuda {
namespace {

constexpr size_t kAlign = 16;
constexpr size_t Aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

absl::Status Upload::Copy(const Device& device) {
  const std::vector<Part> parts = std::exchange(parts_, {});
  size_t bytes = 0;
  for (const Part& part : parts) bytes += Aligned(part.bytes);
  absl::Status status = staged_.Reserve(bytes);
  status.Update(copied_.Reserve(bytes));
  if (!status.ok()) return status;
  // Addresses first, since arrays may contain the addresses of others.
  const std::byte* place = copied_.As<std::byte>();
  for (const Part& part : parts) {
    std::memcpy(part.to, &place, sizeof(place));
    place += Aligned(part.bytes);
  }
  std::byte* staged = staged_.As<std::byte>();
  for (const Part& part : parts) {
    if (part.bytes > 0) std::memcpy(staged, part.from, part.bytes);
    staged += Aligned(part.bytes);
  }
  return device.ToDevice(staged_.As<void>(), bytes, copied_.As<void>());
}

}  // namespace specfabric::base::cuda
