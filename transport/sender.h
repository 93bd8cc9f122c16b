#ifndef SPECFABRIC_TRANSPORT_SENDER_H_
#define SPECFABRIC_TRANSPORT_SENDER_H_

// Frames to peers: UCX's sends, and the buffers that they keep until their completion. A place
// among a peer's outstanding sends (PeerTable) is reserved by the caller and released here. Private
// to transport/; on the engine's thread.

#include <ucp/api/ucp.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "boost/intrusive/list.hpp"
#include "transport/connection.h"
#include "transport/connection_table.h"
#include "transport/engine_state.h"
#include "transport/ucx_runtime.h"

namespace specfabric::transport {

// The test hook of the transport: gets each frame of Sender::Send in place of Sender::Start, which
// it calls for what shall be sent, then or later.
class SendHook {
 public:
  virtual ~SendHook() = default;
  virtual void OnSend(Connection& connection, Outgoing frame) = 0;
};

class Sender {
 public:
  Sender(EngineState& state, UcxRuntime& runtime, ConnectionTable& table)
      : state_(state), runtime_(runtime), table_(table) {}
  ~Sender() { idle_.clear_and_dispose(std::default_delete<SendOp>()); }
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  // For tests; outlives the sender. Null: none.
  void set_hook(SendHook* hook) { hook_ = hook; }

  // Kept until the connection is open; dropped where it is closed.
  void Send(PeerId peer, Outgoing frame);
  // As Engine::Post.
  absl::Status Post(PeerId peer, uint16_t type, const TensorFields& fields, const Lease& slot,
                    uint32_t bytes, PostDone done, void* argument);
  // The connection has opened.
  void SendUnsent(Connection& connection);
  // Without the test hook, and whether or not the connection is open.
  void Start(Connection& connection, Outgoing frame);
  void StartEmpty(Connection& connection, FrameKind kind) { Start(connection, {.kind = kind}); }

  // Handles the completions that UCX's callbacks recorded.
  void HandleCompletions();
  // The worker has ended.
  void Reset() { completed_.clear(); }

 private:
  void SendOpen(Connection& connection, Outgoing frame);
  SendOp& SpareOp();
  SendOp& TakeOp(Connection& connection);
  void Issue(SendOp& op);
  ucs_status_ptr_t SendFronted(Connection& connection, const WireHeader& header, const void* data,
                               uint32_t bytes, SendOp& op);
  ucs_status_ptr_t SendHeaded(Connection& connection, SendOp& op);
  void Await(SendOp& op, ucs_status_ptr_t result);
  void Count(Connection& connection, FrameKind kind, uint32_t bytes);
  void Finish(SendOp& op, ucs_status_t status);
  void NotePath(const SendOp& op);
  static void OnSent(void* request, ucs_status_t status, void* op);

  EngineState& state_;
  UcxRuntime& runtime_;
  ConnectionTable& table_;
  SendHook* hook_ = nullptr;
  boost::intrusive::list<SendOp> idle_;  // owned: kept so that sending does not allocate
  std::vector<std::pair<SendOp*, ucs_status_t>> completed_;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_SENDER_H_
