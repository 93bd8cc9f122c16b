#ifndef SPECFABRIC_TRANSPORT_ENGINE_H_
#define SPECFABRIC_TRANSPORT_ENGINE_H_

// The transport on one thread: connections, frames in both directions, time limits, closing. Fabric
// runs one on its progress thread; a caller that polls by itself (`specfabric perftest`) may own
// one directly. The engine creates its parts, calls them in turn, and replaces the UCX worker; each
// part's header says what it owns:
//
//   UcxRuntime            the UCX context and worker
//   Poller                the file descriptors that end a sleep
//   ConnectionTable       the connections, until UCX has released their buffers
//   Acceptor, Connector,  making connections
//   PeerListeners
//   Sender                frames to peers
//   Receiver, SlotPools   frames from peers, registered memory
//   Liveness              time limits, keep-alive
//   BlockedQueueDetector  whether a lost peer has blocked the shared-memory queue
//   FaultInjection        the test hook
//
// Threads: one, but for Wake and what PeerTable and Counters allow. The handler is called from
// Turn, Shutdown and Close; on_tensor with an eagerly received tensor even from within UCX, so it
// must not call the engine back (Fabric's methods only enqueue).
//
// UCX must not be re-entered from its callbacks, so they only record what happened; Turn handles it
// after ucp_worker_progress has returned.
//
// The engine replaces its worker, which closes every connection (they come back if their owner
// reconnects), in two cases: a killed peer has blocked the shared-memory queue
// (blocked_queue_detector.h), or a peer with a full queue has died or was stopped. In the second
// UCX waits for room in that queue before it releases what the closed connection used, our slots
// among it (openucx/ucx#11682).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "transport/acceptor.h"
#include "transport/address.h"
#include "transport/blocked_queue_detector.h"
#include "transport/connection.h"
#include "transport/connection_table.h"
#include "transport/connector.h"
#include "transport/counters.h"
#include "transport/engine_state.h"
#include "transport/fabric.h"
#include "transport/fault_injection.h"
#include "transport/listen_socket.h"
#include "transport/liveness.h"
#include "transport/peer_listeners.h"
#include "transport/peer_table.h"
#include "transport/poller.h"
#include "transport/receiver.h"
#include "transport/sender.h"
#include "transport/slot_pools.h"
#include "transport/ucx_runtime.h"

namespace specfabric::transport {

class Engine {
 public:
  // `handler`, `peers` and `counters` are the caller's and outlive the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const FabricOptions& options,
                                                        const FabricHandler& handler,
                                                        PeerTable& peers, Counters& counters);
  ~Engine();  // any thread, once no other uses it
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Once on the thread that is going to use the engine, where that is another than the creator's.
  absl::Status UseThread() const { return runtime_.UseThread(); }
  // Accepts peers from now on; returns the address as bound.
  absl::StatusOr<std::string> Listen(ListenSocket socket) {
    return acceptor_.Listen(std::move(socket));
  }
  // `peer` is in the PeerTable already.
  void Connect(PeerId peer, const SocketAddress& address, const std::string& text) {
    connector_.Connect(peer, address, text);
  }
  // The caller has reserved a place for the frame in the PeerTable.
  void Send(PeerId peer, Outgoing frame) { sender_.Send(peer, std::move(frame)); }
  // A tensor from a slot that the caller keeps, and must leave as it is until `done` is called,
  // during this call or a later Turn. Needs no reservation and is not subject to fault injection.
  // NotFound: the peer is not open; `done` is not called.
  absl::Status Post(PeerId peer, uint16_t type, const TensorFields& fields, const Lease& slot,
                    uint32_t bytes, PostDone done, void* argument) {
    return sender_.Post(peer, type, fields, slot, bytes, done, argument);
  }
  void Close(PeerId peer);
  // Begins a flush if none is under way; true: it has completed. A completed send may still lie in
  // UCX's buffers, and closing drops it.
  bool Flushed() { return runtime_.Flushed(); }
  absl::StatusOr<std::shared_ptr<SlotPool>> AddPool(uint8_t id, const SlotPoolOptions& options) {
    return pools_.Add(id, options);
  }
  std::string Transport(PeerId peer) const { return table_.Wire(peer); }
  // As Fabric::PayloadTransport.
  std::string PayloadTransport(PeerId peer, MemoryKind kind) const {
    return table_.PayloadWires(peer, kind);
  }
  // Any thread.
  std::vector<ConnectionStats> OpenConnections() const { return table_.OpenConnections(); }
  std::vector<PoolStats> Pools() const { return pools_.Stats(); }

  // Progresses UCX, up to `polls` times until something happens, and handles what happened. False:
  // nothing did.
  bool Turn(int polls = 1);
  // Sleeps until UCX has work, Wake, the next time limit, or `longest`.
  void Sleep(base::Nanos longest);
  // Ends the current or next Sleep. Any thread, while the engine lives.
  void Wake() { poller_.Wake(); }
  // Closes the listener and every connection. Afterwards only Wake may be called: a thread whose
  // command was taken already may still be about to.
  void Shutdown();

 private:
  Engine(const FabricOptions& options, const FabricHandler& handler, PeerTable& peers,
         Counters& counters);
  absl::Status Start();
  absl::Status StartWorker();
  void HandleEvents();
  void HandleFailures();
  base::Nanos NextDeadline() const;
  void RestartIfBlocked();
  void Restart(const char* reason);
  void CloseAll(const absl::Status& status, base::Nanos timeout);
  void StopWorker();

  EngineState state_;
  UcxRuntime runtime_;
  Poller poller_;
  PeerListeners listeners_;
  BlockedQueueDetector detector_;
  ConnectionTable table_;
  SlotPools pools_;
  Sender sender_;
  std::optional<FaultInjection> faults_;
  Liveness liveness_;
  Connector connector_;
  Acceptor acceptor_;
  Receiver receiver_;
  uint32_t turns_ = 0;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_ENGINE_H_
