#ifndef SPECFABRIC_TRANSPORT_FRAME_H_
#define SPECFABRIC_TRANSPORT_FRAME_H_

// The rules of a frame's header, apart from UCX so that they can be tested alone.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "transport/fabric.h"

namespace specfabric::transport {

constexpr uint32_t kFrameMagic = 0x42464353;  // "SCFB" in memory
constexpr uint16_t kFrameVersion = 1;

// FrameHeader::kind. Both ends send one empty kOpen frame as soon as UCX has chosen the wires; a
// connection is open, and data may go, once the peer's has come in.
enum class FrameKind : uint32_t { kData = 0, kOpen = 1 };

// Checks a received header: its magic, version, kind, that the payload it announces is the one that
// came, and that this is at most `limit` bytes. InvalidArgument otherwise.
absl::Status CheckFrameHeader(const FrameHeader& header, size_t payload_bytes, uint32_t limit);

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_FRAME_H_
