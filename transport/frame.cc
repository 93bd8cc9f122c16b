#include "transport/frame.h"

#include <bit>

#include "absl/strings/str_cat.h"

namespace specfabric::transport {

// The header travels as it lies in memory.
static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(WireHeader) == 32);

absl::Status CheckFrame(const WireHeader& header, size_t header_bytes, size_t payload_bytes,
                        uint32_t limit) {
  if (IsValid(header, header_bytes, payload_bytes, limit)) return absl::OkStatus();
  if (header.kind > kLastFrameKind) {
    return absl::InvalidArgumentError(absl::StrCat("frame kind ", static_cast<int>(header.kind),
                                                   ", must be 0 to ",
                                                   static_cast<int>(kLastFrameKind)));
  }
  if (header_bytes != HeaderBytes(header.kind)) {
    return absl::InvalidArgumentError(absl::StrCat("frame header of ", header_bytes,
                                                   " bytes, must be ", HeaderBytes(header.kind)));
  }
  const bool carries = header.kind == static_cast<uint8_t>(FrameKind::kData) || IsTensor(header);
  return absl::InvalidArgumentError(
      absl::StrCat("frame of ", payload_bytes, " bytes, must be at most ", carries ? limit : 0));
}

}  // namespace specfabric::transport
