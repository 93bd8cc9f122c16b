#ifndef SPECFABRIC_TRANSPORT_PEER_LISTENERS_H_
#define SPECFABRIC_TRANSPORT_PEER_LISTENERS_H_

// UCX listeners, each opened for one peer that has proven the join secret, and kept for a while
// after it was used or given up. Private to transport/; on the engine's thread.

#include <ucp/api/ucp.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "transport/address.h"
#include "transport/engine_state.h"
#include "transport/ucx_context.h"
#include "transport/ucx_runtime.h"

namespace specfabric::transport {

class PeerListeners;

struct PeerListener {
  PeerListeners* owner = nullptr;
  PeerId peer = 0;
  SocketAddress address;                     // where UCX listens
  std::vector<ucp_conn_request_h> requests;  // neither accepted nor rejected yet
  bool used = false;                         // a connection request has come
  base::Nanos withdrawn_at = 0;
  UcxListener listener;
};

class PeerListeners {
 public:
  PeerListeners(EngineState& state, UcxRuntime& runtime) : state_(state), runtime_(runtime) {}

  // `local`: this machine's address, with port 0. `what` begins the error's text.
  absl::StatusOr<std::unique_ptr<PeerListener>> Open(PeerId peer, const SocketAddress& local,
                                                     const std::string& what);
  // Peers whose listener was connected to since the last call.
  std::vector<PeerId> TakeRequested();
  // UCX does not survive the end of a listener while a peer connects to it: its thread still
  // calls the listener when the connection's first bytes arrive (1.13; openucx/ucx#11087 of 1.19).
  // So a listener is kept until its peer has connected, or will not any more: the end of the
  // control connection tells it to give up. Null is ignored.
  void Withdraw(std::unique_ptr<PeerListener> listener);
  // Ends withdrawn listeners whose time has passed. worker_ends: peers that have not connected are
  // given little time too.
  void Retire(base::Nanos now, bool worker_ends);
  bool none_withdrawn() const { return withdrawn_.empty(); }
  // Must be called before the worker ends.
  void Clear();

 private:
  static void OnConnectionRequest(ucp_conn_request_h request, void* listener);

  EngineState& state_;
  UcxRuntime& runtime_;
  std::vector<PeerId> requested_;
  std::vector<std::unique_ptr<PeerListener>> withdrawn_;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_PEER_LISTENERS_H_
