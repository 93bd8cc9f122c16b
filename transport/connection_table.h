#ifndef SPECFABRIC_TRANSPORT_CONNECTION_TABLE_H_
#define SPECFABRIC_TRANSPORT_CONNECTION_TABLE_H_

// Owns the connections of an engine: finding them, closing them, and keeping closed ones until UCX
// has released every buffer of theirs. Private to transport/.
//
// Frames name a connection by the receiver's token, not by UCX's reply endpoint: in UCX 1.13 with
// UCX_PROTO_ENABLE=y, short messages with a reply endpoint overrun a stack array. The token's low
// 16 bits are the connection's index here (PeerTable::IndexOf), the others are random.
//
// Threads: the engine's, but for OpenConnections, which any thread may call.

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "transport/blocked_queue_detector.h"
#include "transport/connection.h"
#include "transport/engine_state.h"
#include "transport/peer_listeners.h"
#include "transport/ucx_runtime.h"

namespace specfabric::transport {

class ConnectionTable {
 public:
  ConnectionTable(EngineState& state, UcxRuntime& runtime, PeerListeners& listeners,
                  BlockedQueueDetector& detector);

  Connection& Add(PeerId peer, std::string address, bool inbound);
  // Null: there is none of that name.
  Connection* Find(PeerId peer) const {
    Connection* const connection = by_index_[PeerTable::IndexOf(peer)];
    return connection != nullptr && connection->id == peer ? connection : nullptr;
  }
  // Null: no connection that may receive has the token.
  Connection* FindByToken(uint64_t token) const {
    Connection* const connection = by_index_[PeerTable::IndexOf(token)];
    const bool found = connection != nullptr && connection->token == token &&
                       connection->state != ConnectionState::kClosing;
    return found ? connection : nullptr;
  }
  // Calls visit(Connection&) for each, in no particular order; it must not add or close any.
  template <typename Visit>
  void ForEach(Visit visit) {
    for (auto& [peer, connection] : connections_) visit(*connection);
  }
  size_t size() const { return connections_.size(); }
  size_t closing() const { return closing_.size(); }
  bool empty() const { return connections_.empty(); }

  // The peer has been heard and the wires are known.
  void SetOpen(Connection& connection);
  // Has the next turn close the connection: for callbacks of UCX, which must not do it themselves.
  void Fail(PeerId peer, const absl::Status& status);
  bool has_failures() const { return !failures_.empty(); }
  void CloseFailed();
  // Cancels what is under way and closes the endpoint with FORCE. The connection is kept, closing,
  // until Retire.
  void BeginClose(Connection& connection, const absl::Status& status);
  void BeginCloseAll(const absl::Status& status);
  // Forgets closed connections that UCX has released.
  void Retire();
  // A closed connection's buffers have not been released in time.
  bool ReleaseOverdue() const;
  // Forgets every connection and failure. The worker has ended.
  void Clear();

  std::string Wire(PeerId peer) const;  // empty: not open
  // As Fabric::PayloadTransport.
  std::string PayloadWires(PeerId peer, MemoryKind kind) const;
  std::vector<ConnectionStats> OpenConnections() const;

  static void OnEndpointError(void* connection, ucp_ep_h endpoint, ucs_status_t status);

 private:
  struct Failure {
    PeerId peer;
    absl::Status status;
  };

  void CancelOperations(Connection& connection);
  void CloseEndpoint(Connection& connection);
  void ReportClosed(Connection& connection, bool was_open, const absl::Status& status);
  static void OnEndpointClosed(void* request, ucs_status_t status, void* connection);

  EngineState& state_;
  UcxRuntime& runtime_;
  PeerListeners& listeners_;
  BlockedQueueDetector& detector_;
  absl::flat_hash_map<PeerId, std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> by_index_;  // of the PeerId; null: free
  std::vector<PeerId> closing_;
  std::vector<Failure> failures_;

  // A connection in `open_` neither ends nor changes its wire while another thread holds the mutex.
  // Only the engine's thread changes `open_`.
  mutable std::mutex open_mutex_;
  absl::flat_hash_map<PeerId, const Connection*> open_;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_CONNECTION_TABLE_H_
