#include "transport/frame.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace specfabric::transport {

// The header travels as it lies in memory.
static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(FrameHeader) == 24);
static_assert(sizeof(WireHeader) == 48);

WireHeader MakeHeader(FrameKind kind, uint16_t type, uint32_t payload_bytes, uint64_t connection,
                      const TensorFields& fields) {
  return {
      {kFrameMagic, kFrameVersion, type, payload_bytes, static_cast<uint32_t>(kind), connection},
      fields.fence.incarnation,
      fields.tag,
      fields.fence.round,
      fields.pool,
      0};
}

TensorFields FieldsOf(const WireHeader& header) {
  return {{header.incarnation, header.round}, header.pool, header.tag};
}

WireHeader ReadHeader(const void* data, size_t bytes) {
  WireHeader header;
  if (bytes > 0) std::memcpy(&header, data, std::min(bytes, sizeof(header)));
  return header;
}

absl::Status CheckFrame(const WireHeader& header, size_t header_bytes, size_t payload_bytes,
                        uint32_t limit) {
  const FrameHeader& base = header.base;
  if (base.magic != kFrameMagic) {
    return absl::InvalidArgumentError("frame without the magic number: not a SpecFabric peer");
  }
  if (base.version != kFrameVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame version ", base.version, ", must be ", kFrameVersion));
  }
  if (base.kind > static_cast<uint32_t>(FrameKind::kTensor)) {
    return absl::InvalidArgumentError(absl::StrCat("frame kind ", base.kind, ", must be 0 to 4"));
  }
  if (header_bytes != HeaderBytes(static_cast<FrameKind>(base.kind))) {
    return absl::InvalidArgumentError(absl::StrCat("frame header of ", header_bytes,
                                                   " bytes, must be ",
                                                   HeaderBytes(static_cast<FrameKind>(base.kind))));
  }
  if (base.payload_bytes != payload_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame announces ", base.payload_bytes, " bytes but carries ", payload_bytes));
  }
  if (payload_bytes > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame of ", payload_bytes, " bytes, must be at most ", limit));
  }
  return absl::OkStatus();
}

}  // namespace specfabric::transport
