#ifndef SPECFABRIC_TRANSPORT_ENGINE_H_
#define SPECFABRIC_TRANSPORT_ENGINE_H_

// All dealings with UCX: connections, frames in both directions, time-outs, closing. Fabric runs
// one on its progress thread; a caller that polls for itself (the bench) may own one directly.
//
// Threads: one, but for Wake and what PeerTable and Counters allow. The handler is called from
// Turn, Shutdown and Close; on_tensor with an eagerly received tensor even from within UCX, so it
// must not call the engine back (Fabric's methods only enqueue).
//
// A connection is made over its control connection (control.h): the one who connects proves the
// join secret; the other opens a UCX listener for it alone, says where, and proves it as well; the
// first connects there.
// Frames name the connection by the receiver's token, not by UCX's reply endpoint: in UCX 1.13 with
// UCX_PROTO_ENABLE=y, short messages with a reply endpoint overrun a stack array. The token's low
// 16 bits are the connection's index here, the others are random.
//
// A peer killed in the middle of writing to our shared-memory queue (UCX keeps one a worker, for
// all peers) leaves an entry that is never finished, and nothing behind it is ever received. So
// after a peer was lost, the first connection whose UCX side stays silent, while no other peer's
// pong comes through that queue, makes the engine replace its worker: every connection is closed,
// and comes back if its owner reconnects. It does the same when a peer whose queue was full has
// died or stands still: UCX then waits for room in that queue before it gives back what the closed
// connection used (openucx/ucx#11682), our slots among it.
//
// UCX's callbacks only note what happened in `events_`; Turn acts on the notes after
// ucp_worker_progress has returned, because UCX must not be re-entered from a callback.

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "transport/accept_failures.h"
#include "transport/address.h"
#include "transport/connection.h"
#include "transport/control.h"
#include "transport/counters.h"
#include "transport/fabric.h"
#include "transport/faults.h"
#include "transport/frame.h"
#include "transport/listen_socket.h"
#include "transport/peer_table.h"
#include "transport/ucx_context.h"

namespace specfabric::transport {

class Engine {
 public:
  // `handler`, `peers` and `counters` are the caller's and outlive the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const FabricOptions& options,
                                                        const FabricHandler& handler,
                                                        PeerTable& peers, Counters& counters);
  ~Engine();  // any thread, once nobody uses it

  // Once on the thread that is going to use the engine, where that is another than the creator's.
  absl::Status UseThread() const;
  // Accepts peers from now on; returns the address as bound.
  absl::StatusOr<std::string> Listen(ListenSocket socket);
  // `peer` is in the PeerTable already.
  void Connect(PeerId peer, const SocketAddress& address, const std::string& text);
  // The caller has reserved a place for the frame in the PeerTable.
  void Send(PeerId peer, Outgoing frame);
  // A tensor from a slot that the caller keeps, and must leave as it is until `done` is called,
  // during this call or a later Turn. Needs no reservation, obeys no fault. NotFound: the peer is
  // not open; `done` is not called.
  absl::Status Post(PeerId peer, uint16_t type, const TensorFields& fields, const Lease& slot,
                    uint32_t bytes, PostDone done, void* argument);
  void Close(PeerId peer);
  // Begins, if none is under way, and asks for the end of: bringing what UCX has taken to the
  // peers. A completed send may still lie in its buffers, and closing drops it.
  bool Flushed();
  absl::StatusOr<std::shared_ptr<SlotPool>> AddPool(uint8_t id, const SlotPoolOptions& options);
  std::string Transport(PeerId peer) const;
  // Any thread.
  std::vector<ConnectionStats> OpenConnections() const;
  std::vector<PoolStats> Pools() const;

  // Progresses UCX, up to `polls` times until something happens, and acts on it. False: nothing
  // did.
  bool Turn(int polls = 1);
  // Sleeps until UCX has work, Wake, the next time-out, or `longest`.
  void Sleep(base::Nanos longest);
  // Ends the current or next Sleep. Any thread, while the engine lives.
  void Wake();
  // Closes the listener and every connection. Afterwards only Wake may be called: a thread whose
  // command was taken already may still be about to.
  void Shutdown();

 private:
  using State = ConnectionState;
  // What epoll reports beside connections, which are named by their PeerId.
  static constexpr uint64_t kUcxEvents = 0;
  static constexpr uint64_t kListenerEvents = UINT64_MAX;
  static constexpr uint64_t kWakeEvents = UINT64_MAX - 1;
  // How long a new peer's first frame may take after its introduction while we are suspicious.
  static constexpr base::Nanos kProbation = 500 * base::kMillisecond;
  // A frame that a fault holds back.
  struct Delayed {
    PeerId peer;
    Outgoing frame;
  };

  Engine(const FabricOptions& options, const FabricHandler& handler, PeerTable& peers,
         Counters& counters);
  absl::Status Start();
  absl::Status StartWorker();
  absl::Status TryRegistering();

  // engine.cc
  void Act();
  absl::Status Watch(int fd, uint64_t id, uint32_t events);
  void PollSockets();
  void Fail(PeerId peer, const absl::Status& status);
  void ActOnFailures();
  base::Nanos NextDeadline() const;
  void RestartIfBlocked();
  void Restart(const char* reason);
  void CloseAll(const absl::Status& status, base::Nanos timeout);
  void ForgetFlush();
  void BeginClose(Connection& connection, const absl::Status& status);
  void RetireClosed();
  Connection* Find(PeerId peer) const {
    Connection* connection = by_index_[PeerTable::IndexOf(peer)];
    return connection != nullptr && connection->id == peer ? connection : nullptr;
  }

  // engine_liveness.cc
  void CloseLateOpeners();
  void CheckPeerLiveness();
  void GiveUpLateTensors(Connection& connection);
  void PutOnProbation(const Connection& connection);

  // engine_connect.cc
  void AcceptConnections();
  void PauseAccepting(const absl::Status& why);
  void ResumeAccepting();
  void WatchListener(uint32_t events);
  Connection& AddConnection(PeerId peer, ControlConnection control, std::string address,
                            bool inbound);
  void PruneUnauthenticated();
  void AdvanceControl(Connection& connection);
  absl::Status Admit(Connection& connection);
  void FailControl(const Connection& connection, const absl::Status& status);
  absl::Status OfferEndpoint(Connection& connection);
  void ActOnRequests();
  void Withdraw(std::unique_ptr<Offer> offer);
  // `all`: the worker ends, so that even peers that have not come are not waited for much longer.
  void RetireOffers(base::Nanos now, bool all);
  void OpenEndpoint(Connection& connection, ucp_ep_params_t& params);
  void ActOnWired();
  absl::Status CheckWire(Connection& connection);
  void OpenIfReady(Connection& connection);

  // engine_send.cc
  void SendOrFault(Connection& connection, Outgoing frame);
  void SendDelayed(base::Nanos now);
  void StartSend(Connection& connection, Outgoing frame);
  SendOp& SpareSendOp();
  SendOp& TakeSendOp(Connection& connection);
  void Issue(SendOp& op);
  ucs_status_ptr_t SendFronted(Connection& connection, const WireHeader& header, const void* data,
                               uint32_t bytes, SendOp& op);
  ucs_status_ptr_t SendHeaded(Connection& connection, SendOp& op);
  void Await(SendOp& op, ucs_status_ptr_t result);
  void CountSent(Connection& connection, FrameKind kind, uint32_t bytes);
  void Finish(SendOp& op, ucs_status_t status);
  void ActOnSent();

  // engine_receive.cc
  absl::Status AcceptFrames();
  Connection* ReceiverOf(const WireHeader& header, size_t header_bytes, size_t bytes);
  void TakeEager(Connection& connection, const WireHeader& header, const void* payload,
                 size_t bytes);
  void NoteFrame(Connection& connection, const WireHeader& header,
                 absl::Span<const uint8_t> payload);
  void RefuseUnsound(Connection& connection, const WireHeader& header, size_t header_bytes,
                     size_t bytes);
  void RefuseFrame(Connection& connection, const absl::Status& status);
  ucs_status_t Postpone(Connection& connection, const Announced& announced);
  void ActOnFrames();
  void ActOnAnnounced();
  void ActOnReceived();
  void StartReceives(Connection& connection);
  void StartTensor(Connection& connection, const Announced& announced);
  static ReceiveOp& AddReceive(Connection& connection, const Announced& announced);
  ReceiveOp& CopyOut(Connection& connection, const Announced& announced, void* data,
                     MemoryKind kind);
  ReceiveOp& Receive(Connection& connection, const Announced& announced, void* data,
                     const SlotPool* pool);
  void Deliver(Connection& connection, const WireHeader& header, std::vector<uint8_t> payload);
  void DeliverTensor(Connection& connection, Tensor&& tensor);

  static void OnConnectionRequest(ucp_conn_request_h request, void* offer);
  static void OnWired(void* request, ucs_status_t status, void* connection);
  static void OnEndpointError(void* connection, ucp_ep_h endpoint, ucs_status_t status);
  static void OnEndpointClosed(void* request, ucs_status_t status, void* connection);
  static void OnSent(void* request, ucs_status_t status, void* op);
  static void OnReceived(void* request, ucs_status_t status, size_t bytes, void* op);
  static ucs_status_t OnHeaded(void* engine, const void* header, size_t header_bytes, void* data,
                               size_t bytes, const ucp_am_recv_param_t* param);
  static ucs_status_t OnFronted(void* engine, const void* header, size_t header_bytes, void* data,
                                size_t bytes, const ucp_am_recv_param_t* param);

  const FabricOptions options_;
  int gpu_;  // whose context UCX is used in; -1: none's
  const FabricHandler& handler_;
  PeerTable& peers_;
  Counters& counters_;

  bool may_ask_for_rendezvous_ = false;
  // Its end would abort the process: UCX before 1.16 never gives back the registration of a send
  // that its endpoint's end has cut short, and an abandoned worker still uses it.
  bool keep_context_ = false;
  UcxContext context_;
  UcxWorker worker_;
  void* flush_ = nullptr;  // the request under way of Flushed
  ControlListener listener_;
  AcceptFailures accept_failures_;
  base::Nanos accept_again_ = base::kForever;  // accepting is paused until then
  UniqueFd epoll_;         // UCX's event descriptor, the listener, the control connections
  UniqueFd wake_;          // an eventfd, for Wake
  base::Nanos now_ = 0;    // of the last Act
  base::Nanos awake_ = 0;  // how long the engine has been turning
  uint32_t turns_ = 0;
  base::Nanos next_poll_ = 0;
  base::Nanos next_liveness_check_ = 0;

  absl::flat_hash_map<PeerId, std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> by_index_;  // of the PeerId; null: nobody
  std::vector<PeerId> closing_;
  std::vector<std::unique_ptr<Offer>> withdrawn_;
  // In order of deadline, because every connection gets the same time; ids may be long gone.
  std::deque<std::pair<base::Nanos, PeerId>> opening_;
  // Accepted connections that may not have proven the join secret yet, the oldest first.
  std::deque<PeerId> unauthenticated_;
  bool may_share_memory_ = false;
  bool suspect_ = false;  // a peer was lost that may have blocked our shared-memory queue
  // Connections made since, by the time at which they must have been heard.
  std::deque<std::pair<base::Nanos, PeerId>> probation_;
  base::Nanos memory_answered_ = 0;  // when a pong last came through shared memory
  Events events_;

  boost::intrusive::list<SendOp> idle_sends_;                      // the engine deletes them
  absl::flat_hash_map<uint8_t, std::shared_ptr<SlotPool>> pools_;  // see shown_mutex_
  std::optional<FaultInjector> faults_;
  std::multimap<base::Nanos, Delayed> delayed_;  // by when it is due

  // What other threads may look at: what is in `open_` neither ends nor changes its wire while
  // they hold the mutex. Only the engine's thread changes `open_` and `pools_`, with the mutex.
  mutable std::mutex shown_mutex_;
  absl::flat_hash_map<PeerId, const Connection*> open_;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_ENGINE_H_
