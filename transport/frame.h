#ifndef SPECFABRIC_TRANSPORT_FRAME_H_
#define SPECFABRIC_TRANSPORT_FRAME_H_

// A frame's header and its validation, apart from UCX so that they can be tested alone. UCX carries
// the header as the active message's header, or (kFrontedMessage) in front of the payload. The
// latter is cheaper where the sender has room there: UCX would put the header behind the payload,
// another cache line to fetch. The header is short, so that with a small payload it fits into one
// cache line of shared memory. The control connection (handshake.h) checks its version.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "transport/fabric.h"

namespace specfabric::transport {

// Ids of active messages.
constexpr unsigned kHeadedMessage = 1;
constexpr unsigned kFrontedMessage = 2;  // eager only

// Both ends send one empty kOpen frame once UCX has chosen the wires; a connection is open, and may
// carry data, once the peer's has arrived. A kPing is answered with a kPong. A tensor is a
// kTaggedTensor if its tag is not 0, and a kFencedTensor if its incarnation is not.
enum class FrameKind : uint8_t {
  kData = 0,
  kOpen = 1,
  kPing = 2,
  kPong = 3,
  kTensor = 4,
  kTaggedTensor = 5,
  kFencedTensor = 6
};
constexpr uint8_t kLastFrameKind = 6;

// Little-endian, and as long on the wire as HeaderBytes says for its kind.
struct WireHeader {
  uint64_t connection = 0;  // the receiver's token for the connection, known to this peer only
  uint32_t round = 0;
  uint16_t type = 0;  // the message type; opaque here
  uint8_t kind = 0;
  uint8_t pool = 0;  // with kInSlot: the payload goes to a slot even if UCX delivers it eagerly
  uint64_t tag = 0;
  uint64_t incarnation = 0;
};

constexpr uint8_t kInSlot = 0x80;
constexpr uint8_t kLastPool = kInSlot - 1;

constexpr size_t HeaderBytes(uint8_t kind) {
  switch (static_cast<FrameKind>(kind)) {
    case FrameKind::kTaggedTensor:
      return 24;
    case FrameKind::kFencedTensor:
      return 32;
    default:
      return 16;
  }
}

// `kind` of a tensor is kTensor; the header may say kTaggedTensor or kFencedTensor.
inline WireHeader MakeHeader(FrameKind kind, uint16_t type, uint64_t connection,
                             const TensorFields& fields) {
  if (kind == FrameKind::kTensor && fields.tag != 0) kind = FrameKind::kTaggedTensor;
  if (fields.fence.incarnation != 0) kind = FrameKind::kFencedTensor;
  return {connection, fields.fence.round,      type, static_cast<uint8_t>(kind), fields.pool,
          fields.tag, fields.fence.incarnation};
}
inline TensorFields FieldsOf(const WireHeader& header) {
  return {{header.incarnation, header.round},
          static_cast<uint8_t>(header.pool & kLastPool),
          header.tag};
}
inline bool IsTensor(const WireHeader& header) {
  return header.kind >= static_cast<uint8_t>(FrameKind::kTensor) && header.kind <= kLastFrameKind;
}

// Puts a header in front of a payload, as words made in registers: UCX reads the bytes back at
// once, and a load that overlaps several recent stores stalls until all have been written.
inline void WriteHeader(const WireHeader& header, size_t bytes, void* to) {
  const uint64_t words[] = {header.connection,
                            header.round | uint64_t{header.type} << 32 |
                                uint64_t{header.kind} << 48 | uint64_t{header.pool} << 56,
                            header.tag, header.incarnation};
  std::memcpy(to, words, 16);
  if (bytes > 16) std::memcpy(static_cast<uint8_t*>(to) + 16, words + 2, bytes - 16);
}

// Copies a received header out of UCX's memory; a header of an unknown length stays zero.
inline WireHeader ReadHeader(const void* data, size_t bytes) {
  WireHeader header;
  if (bytes == 24) {
    std::memcpy(static_cast<void*>(&header), data, 24);
  } else if (bytes == 16) {
    std::memcpy(static_cast<void*>(&header), data, 16);
  } else if (bytes == 32) {
    std::memcpy(static_cast<void*>(&header), data, 32);
  }
  return header;
}

// The length of the header in front of a payload; 0: there is none.
inline size_t FrontedHeaderBytes(const void* data, size_t bytes) {
  constexpr size_t kShortest = 16;
  if (bytes < kShortest) return 0;
  const size_t length = HeaderBytes(static_cast<const uint8_t*>(data)[offsetof(WireHeader, kind)]);
  return bytes < length ? 0 : length;
}

// Whether CheckFrame would say OK.
inline bool IsValid(const WireHeader& header, size_t header_bytes, size_t payload_bytes,
                    uint32_t limit) {
  const bool carries = header.kind == static_cast<uint8_t>(FrameKind::kData) || IsTensor(header);
  return header.kind <= kLastFrameKind && header_bytes == HeaderBytes(header.kind) &&
         payload_bytes <= (carries ? limit : 0);
}

// Checks a received header of `header_bytes`: its kind and size, and that the payload is at most
// `limit` bytes, or none where the kind has none. InvalidArgument otherwise.
absl::Status CheckFrame(const WireHeader& header, size_t header_bytes, size_t payload_bytes,
                        uint32_t limit);

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_FRAME_H_
