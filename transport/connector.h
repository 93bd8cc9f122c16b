#ifndef SPECFABRIC_TRANSPORT_CONNECTOR_H_
#define SPECFABRIC_TRANSPORT_CONNECTOR_H_

// Makes connections. Each begins with a control connection (control.h): the client, the side that
// connects, proves the join secret; the server opens a UCX listener for it alone, tells it the
// address, and proves the secret too; the client connects there. Once UCX has chosen the wires each
// side sends a kOpen frame; with the peer's, the connection is open.
//
// Private to transport/; on the engine's thread.

#include <ucp/api/ucp.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "transport/address.h"
#include "transport/connection_table.h"
#include "transport/control.h"
#include "transport/engine_state.h"
#include "transport/liveness.h"
#include "transport/peer_listeners.h"
#include "transport/poller.h"
#include "transport/sender.h"
#include "transport/ucx_runtime.h"

namespace specfabric::transport {

class Connector {
 public:
  // The other parts of the engine, which outlive the connector.
  struct Parts {
    UcxRuntime& runtime;
    Poller& poller;
    PeerListeners& listeners;
    BlockedQueueDetector& detector;
    ConnectionTable& table;
    Sender& sender;
    Liveness& liveness;
  };
  Connector(EngineState& state, const Parts& parts) : state_(state), parts_(parts) {}

  void Connect(PeerId peer, const SocketAddress& address, const std::string& text);
  // A connection that the listening socket has accepted.
  void Accept(PeerId peer, ControlListener::Accepted accepted);
  // The control connection's socket is ready.
  void AdvanceControl(Connection& connection);
  // Handles what UCX's callbacks recorded: peers that connected to their listener...
  void HandleRequests();
  // ...and endpoints whose wires are known.
  void HandleWired();
  // Opens the connection once its wires are known and its peer was heard.
  void OpenIfReady(Connection& connection);
  // The worker has ended.
  void Reset() { wired_.clear(); }

 private:
  Connection& Add(PeerId peer, ControlConnection control, std::string address, bool inbound);
  // Closes the oldest accepted connection that has not proven the join secret, if there are too
  // many.
  void LimitUnauthenticated();
  void PruneUnauthenticated();
  absl::Status Admit(Connection& connection);
  void FailControl(const Connection& connection, const absl::Status& status);
  absl::Status OpenListener(Connection& connection);
  void ConnectEndpoint(Connection& connection, const SocketAddress& peer);
  void OpenEndpoint(Connection& connection, ucp_ep_params_t& params);
  absl::Status CheckWire(Connection& connection);
  static void OnWired(void* request, ucs_status_t status, void* connection);

  EngineState& state_;
  const Parts parts_;
  std::deque<PeerId> unauthenticated_;  // the oldest first; some may have proven the secret since
  std::vector<std::pair<Connection*, ucs_status_t>> wired_;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_CONNECTOR_H_
