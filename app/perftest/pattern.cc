#include "app/perftest/pattern.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "transport/gpu.h"

namespace specfabric::perftest {

std::vector<uint8_t> Pattern(uint32_t bytes, uint8_t seed) {
  std::vector<uint8_t> pattern(bytes);
  uint32_t state = seed + 1;
  for (uint8_t& byte : pattern) {
    state = state * 1664525 + 1013904223;  // Numerical Recipes' generator
    byte = static_cast<uint8_t>(state >> 24);
  }
  return pattern;
}

absl::Status CheckPattern(absl::Span<const uint8_t> came, uint32_t bytes, uint8_t seed) {
  if (came.size() != bytes) {
    return absl::InternalError(
        absl::StrCat("of ", bytes, " bytes that were sent ", came.size(), " came"));
  }
  const std::vector<uint8_t> sent = Pattern(bytes, seed);
  const auto [here, there] = std::mismatch(came.begin(), came.end(), sent.begin());
  if (here == came.end()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("byte ", here - came.begin(), " of ", bytes,
                                          " was sent as ", *there, " and came as ", *here));
}

absl::Status WriteSlot(const transport::Lease& slot, absl::Span<const uint8_t> bytes) {
  if (slot.pool()->options().kind == transport::MemoryKind::kCuda) {
    return transport::CopyToGpu(bytes.data(), bytes.size(), slot.data());
  }
  std::memcpy(slot.data(), bytes.data(), bytes.size());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint8_t>> ReadTensor(const transport::Tensor& tensor) {
  const bool on_gpu =
      tensor.lease && tensor.lease.pool()->options().kind == transport::MemoryKind::kCuda;
  if (!on_gpu) return std::vector<uint8_t>(tensor.bytes.begin(), tensor.bytes.end());
  std::vector<uint8_t> bytes(tensor.bytes.size());
  absl::Status copied = transport::CopyFromGpu(tensor.bytes.data(), bytes.size(), bytes.data());
  if (!copied.ok()) return copied;
  return bytes;
}

}  // namespace specfabric::perftest
