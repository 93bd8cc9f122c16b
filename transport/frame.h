#ifndef SPECFABRIC_TRANSPORT_FRAME_H_
#define SPECFABRIC_TRANSPORT_FRAME_H_

// The rules of a frame's header, apart from UCX so that they can be tested alone.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "transport/fabric.h"

namespace specfabric::transport {

constexpr uint32_t kFrameMagic = 0x42464353;  // "SCFB" in memory
constexpr uint16_t kFrameVersion = 2;

// FrameHeader::kind. Both ends send one empty kOpen frame as soon as UCX has chosen the wires; a
// connection is open, and data may go, once the peer's has come in. A kPing is answered with a
// kPong.
enum class FrameKind : uint32_t { kData = 0, kOpen = 1, kPing = 2, kPong = 3, kTensor = 4 };

// What UCX carries as the active message's header: a tensor's whole, of others only `base`.
struct WireHeader {
  FrameHeader base;
  uint64_t incarnation = 0;
  uint64_t tag = 0;
  uint32_t round = 0;
  uint16_t pool = 0;
  uint16_t reserved = 0;
};

constexpr size_t HeaderBytes(FrameKind kind) {
  return kind == FrameKind::kTensor ? sizeof(WireHeader) : sizeof(FrameHeader);
}
WireHeader MakeHeader(FrameKind kind, uint16_t type, uint32_t payload_bytes, uint64_t connection,
                      const TensorFields& fields);
TensorFields FieldsOf(const WireHeader& header);

// Copies a received header out of UCX's memory; what is missing of it stays zero.
WireHeader ReadHeader(const void* data, size_t bytes);

// Checks a received header of `header_bytes`: its magic, version, kind and size, that the payload
// it announces is the one that came, and that this is at most `limit` bytes. InvalidArgument
// otherwise.
absl::Status CheckFrame(const WireHeader& header, size_t header_bytes, size_t payload_bytes,
                        uint32_t limit);

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_FRAME_H_
