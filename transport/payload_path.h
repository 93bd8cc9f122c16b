#ifndef SPECFABRIC_TRANSPORT_PAYLOAD_PATH_H_
#define SPECFABRIC_TRANSPORT_PAYLOAD_PATH_H_

// Which wires carried the bytes of a large message. A connection's own wire (TransportOf) carries
// its active messages; by rendezvous UCX moves the bytes over any wire that reaches both memories,
// such as cuda_ipc between two GPUs, and decides that for each kind of memory. Private to
// transport/.

#include <string>

#include "absl/strings/string_view.h"

namespace specfabric::transport {

struct PayloadPath {
  std::string wires;     // "cuda_ipc/cuda"; several are joined by " and "; empty: not known
  std::string protocol;  // UCX's words: "zero-copy flushed write to remote"
};

// Reads what ucp_request_query says of a send by UCX's newer protocols.
PayloadPath ParseRequestInfo(absl::string_view info);

// The path of a send that has completed; `request` is not freed yet. What the receiver wrote, or
// asked to be written or sent, is UCX's last choice for the request; what the receiver read is what
// the sender expected of it when it offered the memory. Not known: before UCX 1.16.
PayloadPath PathOfSend(void* request);

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_PAYLOAD_PATH_H_
