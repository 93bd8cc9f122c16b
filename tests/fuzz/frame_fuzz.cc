// A received frame's header: what comes is a 4-byte limit, a 4-byte payload size and the header as
// UCX hands it over, apart from the payload or in front of it. What is accepted must be within its
// bounds, and be what the sender would have made of the same fields.

#include <cstring>

#include "base/check.h"
#include "tests/fuzz/target.h"
#include "transport/frame.h"

namespace specfabric {
namespace {

using transport::FrameKind;
using transport::WireHeader;

struct Bounds {
  uint32_t limit = 0;
  uint32_t payload_bytes = 0;
};

void CheckAccepted(const WireHeader& header, size_t header_bytes, const Bounds& bounds) {
  SPECFABRIC_CHECK(header.kind <= transport::kLastFrameKind);
  SPECFABRIC_CHECK(header_bytes == transport::HeaderBytes(header.kind));
  SPECFABRIC_CHECK(bounds.payload_bytes <= bounds.limit);
  const FrameKind kind = static_cast<FrameKind>(header.kind);
  const bool tensor = transport::IsTensor(header);
  if (kind != FrameKind::kData && !tensor) SPECFABRIC_CHECK(bounds.payload_bytes == 0);
  WireHeader again = transport::MakeHeader(tensor ? FrameKind::kTensor : kind, header.type,
                                           header.connection, transport::FieldsOf(header));
  if (tensor) again.pool |= header.pool & transport::kInSlot;
  // A sender leaves an incarnation or a tag of 0 out; a header that says it is as good.
  if (kind == FrameKind::kFencedTensor && header.incarnation == 0) return;
  if (kind == FrameKind::kTaggedTensor && header.tag == 0) return;
  // Only a tensor's pool has the bit; other kinds send no pool at all.
  if (!tensor && (header.pool & transport::kInSlot) != 0) return;
  SPECFABRIC_CHECK(std::memcmp(&again, &header, header_bytes) == 0);
}

// The header apart from the payload.
void CheckHeaded(const fuzz::Bytes& received, const Bounds& bounds) {
  const WireHeader header = transport::ReadHeader(received.data(), received.size());
  const absl::Status status =
      transport::CheckFrame(header, received.size(), bounds.payload_bytes, bounds.limit);
  if (status.ok()) CheckAccepted(header, received.size(), bounds);
}

// The header in front of the payload.
void CheckFronted(const fuzz::Bytes& received, uint32_t limit) {
  const size_t header_bytes = transport::FrontedHeaderBytes(received.data(), received.size());
  SPECFABRIC_CHECK(header_bytes <= received.size());
  if (header_bytes == 0) return;
  const WireHeader header = transport::ReadHeader(received.data(), header_bytes);
  const size_t payload_bytes = received.size() - header_bytes;
  const absl::Status status = transport::CheckFrame(header, header_bytes, payload_bytes, limit);
  if (status.ok()) {
    CheckAccepted(header, header_bytes, {limit, static_cast<uint32_t>(payload_bytes)});
  }
}

}  // namespace

std::vector<fuzz::Bytes> fuzz::Seeds() {
  std::vector<Bytes> seeds;
  for (uint8_t kind = 0; kind <= transport::kLastFrameKind; ++kind) {
    const bool fenced = kind == static_cast<uint8_t>(FrameKind::kFencedTensor);
    const FrameKind made = fenced ? FrameKind::kTensor : static_cast<FrameKind>(kind);
    const WireHeader header =
        transport::MakeHeader(made, 7, 0x0123456789ABCDEF, {{fenced ? 5u : 0u, 6}, 1, 9});
    const bool carries = kind == static_cast<uint8_t>(FrameKind::kData) || IsTensor(header);
    const Bounds bounds = {1 << 20, carries ? 4096u : 0u};
    Bytes seed(sizeof(bounds) + transport::HeaderBytes(kind));
    std::memcpy(seed.data(), &bounds, sizeof(bounds));
    std::memcpy(seed.data() + sizeof(bounds), &header, transport::HeaderBytes(kind));
    seeds.push_back(seed);
    if (carries) seed.resize(seed.size() + 40, 0x5A);  // as a header in front of a payload
    seeds.push_back(std::move(seed));
  }
  return seeds;
}

}  // namespace specfabric

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specfabric;  // NOLINT: the entry point cannot be inside
  Bounds bounds;
  if (size < sizeof(bounds)) return 0;
  std::memcpy(&bounds, data, sizeof(bounds));
  const fuzz::Bytes received(data + sizeof(bounds), data + size);
  CheckHeaded(received, bounds);
  CheckFronted(received, bounds.limit);
  return 0;
}
