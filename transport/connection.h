#ifndef SPECFABRIC_TRANSPORT_CONNECTION_H_
#define SPECFABRIC_TRANSPORT_CONNECTION_H_

// What the engine keeps for one connection, and for each of its frames under way. Plain data, all
// of it the engine's. Private to transport/.

#include <ucp/api/ucp.h>

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "boost/intrusive/list.hpp"
#include "transport/control.h"
#include "transport/counters.h"
#include "transport/fabric.h"
#include "transport/frame.h"
#include "transport/ucx_context.h"

namespace specfabric::transport {

class Engine;
struct Connection;

// Called once UCX is done with memory given to Engine::Post.
using PostDone = void (*)(void* argument, ucs_status_t status);

// A frame on its way out. Its bytes are a message's payload, a slot's, or the caller's own.
struct Outgoing {
  FrameKind kind = FrameKind::kData;
  uint16_t type = 0;
  TensorFields fields = {};
  std::vector<uint8_t> payload = {};
  Lease lease = {};
  const void* data = nullptr;  // of `payload`, of the slot, or the caller's
  uint32_t bytes = 0;
  void* memory = nullptr;  // UCX's handle of registered memory
  bool headroom = false;   // a header may be written in front of `data`
  PostDone done = nullptr;
  void* done_argument = nullptr;
};

// Makes a slot the frame's bytes.
void PointAtSlot(const Lease& slot, Outgoing& frame);

// One frame given to UCX. It stays in its connection's list, at one address, until UCX is done
// with both header and payload; then the engine keeps it for another.
struct SendOp : boost::intrusive::list_base_hook<> {
  Connection* connection = nullptr;
  WireHeader header;
  Outgoing frame;
  void* request = nullptr;
};

// A rendezvous receive that UCX is writing to: a message's memory, or a slot.
struct ReceiveOp {
  Connection* connection = nullptr;
  std::list<ReceiveOp>::iterator self;
  WireHeader header;
  uint32_t bytes = 0;
  std::vector<uint8_t> payload;
  Lease lease;
  void* request = nullptr;
  base::Nanos give_up_at = 0;
  bool given_up = false;
};

// A rendezvous that was announced, or a large tensor that came eagerly, and waits for its turn.
struct Announced {
  WireHeader header;
  uint32_t bytes = 0;
  void* descriptor = nullptr;
  bool has_data = false;  // the descriptor is the payload itself
};

// A UCX listener that waits for one peer.
struct Offer {
  Engine* engine = nullptr;
  PeerId peer = 0;
  std::vector<ucp_conn_request_h> requests;  // not taken yet
  bool used = false;                         // somebody has connected
  base::Nanos withdrawn_at = 0;
  UcxListener listener;
};

enum class ConnectionState { kOpening, kOpen, kClosing };

struct Connection {
  ~Connection() { sends.clear_and_dispose(std::default_delete<SendOp>()); }

  PeerId id = 0;
  Engine* engine = nullptr;
  std::string address;
  bool inbound = false;
  ConnectionState state = ConnectionState::kOpening;
  ControlConnection control;
  uint64_t token = 0;            // in the frames we receive
  uint64_t peers_token = 0;      // in the frames we send
  std::unique_ptr<Offer> offer;  // inbound, until UCX has connected
  ucp_ep_h endpoint = nullptr;
  bool endpoint_closed = false;
  bool wiring = false;  // a flush is under way that ends when UCX has chosen the wires
  void* wiring_request = nullptr;
  bool wired = false;          // it has, and we have sent our kOpen frame
  std::string wire;            // once open
  bool shares_memory = false;  // the wire is, or may be, shared memory
  Counter bytes_sent, bytes_received;
  bool heard = false;  // a frame of the peer's came in
  base::Nanos last_heard = 0;
  base::Nanos last_ping = 0;
  std::vector<Outgoing> unsent;  // frames that wait for the connection to open
  boost::intrusive::list<SendOp> sends;
  std::list<ReceiveOp> receives;
  std::deque<Announced> announced;          // messages
  std::deque<Announced> announced_tensors;  // do not wait behind messages
  uint64_t receiving_bytes = 0;             // of messages in `receives`
  base::Nanos release_by = INT64_MAX;       // once closing: when, of Engine::awake_, UCX must have
                                            // let go
};

// What UCX's callbacks noted since the last turn.
struct Events {
  bool any = false;
  std::vector<std::pair<SendOp*, ucs_status_t>> sent;
  std::vector<std::pair<ReceiveOp*, ucs_status_t>> received;
  struct EagerFrame {
    PeerId peer;
    WireHeader header;
    std::vector<uint8_t> payload;
  };
  std::vector<EagerFrame> frames;
  std::vector<PeerId> announced;
  std::vector<PeerId> requested;  // whose listener was connected to
  std::vector<std::pair<Connection*, ucs_status_t>> wired;
  struct Failure {
    PeerId peer;
    absl::Status status;
  };
  std::vector<Failure> failures;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_CONNECTION_H_
