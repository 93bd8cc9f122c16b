#ifndef SPECFABRIC_TRANSPORT_CONNECTION_H_
#define SPECFABRIC_TRANSPORT_CONNECTION_H_

// What the engine keeps for one connection, and for each of its frames under way. Plain data, read
// and written by the engine's parts on its thread; each group names the part that changes it.
// Private to transport/.

#include <ucp/api/ucp.h>

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "boost/intrusive/list.hpp"
#include "transport/control.h"
#include "transport/counters.h"
#include "transport/fabric.h"
#include "transport/frame.h"
#include "transport/peer_listeners.h"

namespace specfabric::transport {

class ConnectionTable;
class Connector;
class Receiver;
class Sender;
struct Connection;

// Called once UCX is done with memory given to Engine::Post.
using PostDone = void (*)(void* argument, ucs_status_t status);

// A frame to be sent. Its bytes are a message's payload, a slot's, or the caller's own.
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
// with both header and payload; then the sender keeps it for another frame.
struct SendOp : boost::intrusive::list_base_hook<> {
  Sender* sender = nullptr;
  Connection* connection = nullptr;
  WireHeader header;
  Outgoing frame;
  void* request = nullptr;
};

// A rendezvous receive that UCX is writing to: a message's memory, or a slot.
struct ReceiveOp {
  Receiver* receiver = nullptr;
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

// A rendezvous that was announced, or a large tensor that came eagerly, and is not started yet.
struct Announced {
  WireHeader header;
  uint32_t bytes = 0;
  void* descriptor = nullptr;
  bool has_data = false;  // the descriptor is the payload itself
};

enum class ConnectionState { kOpening, kOpen, kClosing };

struct Connection {
  ~Connection() { sends.clear_and_dispose(std::default_delete<SendOp>()); }

  // ConnectionTable.
  ConnectionTable* table = nullptr;
  PeerId id = 0;
  std::string address;
  bool inbound = false;
  ConnectionState state = ConnectionState::kOpening;
  uint64_t token = 0;  // names the connection in the frames we receive
  bool endpoint_closed = false;
  // Once closing: the running time (EngineState) by which UCX must have released its buffers.
  base::Nanos release_by = INT64_MAX;

  // Connector.
  Connector* connector = nullptr;
  ControlConnection control;
  uint64_t peers_token = 0;                // names the connection in the frames we send
  std::unique_ptr<PeerListener> listener;  // inbound, until the endpoint is wired
  ucp_ep_h endpoint = nullptr;
  bool wiring = false;  // a flush is under way that ends when UCX has chosen the wires
  void* wiring_request = nullptr;
  bool wired = false;          // the flush has ended, and we have sent our kOpen frame
  std::string wire;            // once wired
  bool shares_memory = false;  // the wire is, or may be, shared memory

  // Sender.
  std::vector<Outgoing> unsent;  // frames that wait for the connection to open
  boost::intrusive::list<SendOp> sends;
  Counter bytes_sent;
  // Of large tensors out of memory of each MemoryKind, once one has been sent; else empty.
  std::array<std::string, 2> payload_wires;

  // Receiver.
  bool heard = false;  // a frame of the peer's has arrived
  base::Nanos last_heard = 0;
  std::list<ReceiveOp> receives;
  std::deque<Announced> announced;          // messages
  std::deque<Announced> announced_tensors;  // do not wait behind messages
  uint64_t receiving_bytes = 0;             // of messages in `receives`
  Counter bytes_received;

  // Liveness.
  base::Nanos last_ping = 0;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_CONNECTION_H_
