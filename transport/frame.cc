#include "transport/frame.h"

#include <bit>

#include "absl/strings/str_cat.h"

namespace specfabric::transport {

// The header travels as it lies in memory.
static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(FrameHeader) == 24);

absl::Status CheckFrameHeader(const FrameHeader& header, size_t payload_bytes, uint32_t limit) {
  if (header.magic != kFrameMagic) {
    return absl::InvalidArgumentError("frame without the magic number: not a SpecFabric peer");
  }
  if (header.version != kFrameVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame version ", header.version, ", must be ", kFrameVersion));
  }
  if (header.kind > static_cast<uint32_t>(FrameKind::kOpen)) {
    return absl::InvalidArgumentError(absl::StrCat("frame kind ", header.kind, ", must be 0 or 1"));
  }
  if (header.payload_bytes != payload_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("frame announces ", header.payload_bytes,
                                                   " bytes but carries ", payload_bytes));
  }
  if (payload_bytes > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame of ", payload_bytes, " bytes, must be at most ", limit));
  }
  return absl::OkStatus();
}

}  // namespace specfabric::transport
