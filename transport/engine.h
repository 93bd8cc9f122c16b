#ifndef SPECFABRIC_TRANSPORT_ENGINE_H_
#define SPECFABRIC_TRANSPORT_ENGINE_H_

// All dealings with UCX: connections, frames in both directions, time-outs, closing.
// Single-threaded (the fabric's progress thread) but for Wake. Private to transport/.
//
// A connection is made over its control connection (control.h): the one who connects introduces
// itself; the other opens a UCX listener for it alone and says where; the first connects there.
// Frames name the connection by the receiver's token, not by UCX's reply endpoint: in UCX 1.13 with
// UCX_PROTO_ENABLE=y, short messages with a reply endpoint overrun a stack array.
//
// A peer killed in the middle of writing to our shared-memory queue (UCX keeps one a worker, for
// all peers) leaves an entry that is never finished, and nothing behind it is ever received. So
// after a peer was lost, the first connection whose UCX side stays silent makes the engine replace
// its worker: every connection is closed, and comes back if its owner reconnects.
//
// UCX's callbacks only note what happened in `events_`; Turn acts on the notes after
// ucp_worker_progress has returned, because UCX must not be re-entered from a callback.

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "transport/address.h"
#include "transport/control.h"
#include "transport/fabric.h"
#include "transport/frame.h"
#include "transport/peer_table.h"
#include "transport/ucx_context.h"

namespace specfabric::transport {

// FabricStats as they are counted.
struct Counters {
  std::atomic<uint64_t> frames_sent{0}, frames_received{0}, bytes_sent{0}, bytes_received{0};
  std::atomic<uint64_t> opened{0}, closed{0}, refused_frames{0}, send_errors{0};
  std::atomic<uint64_t> connect_failures{0}, wakeups{0}, unattributed_frames{0}, restarts{0},
      releasing{0};

  FabricStats Read() const;
};

class Engine {
 public:
  // `handler`, `peers`, `counters` and `last_peer_id` (the last PeerId given out) are the fabric's
  // and outlive the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const FabricOptions& options,
                                                        const FabricHandler& handler,
                                                        PeerTable& peers, Counters& counters,
                                                        std::atomic<PeerId>& last_peer_id);
  ~Engine();  // any thread, once nobody uses it

  // Returns the address as bound.
  absl::StatusOr<std::string> Listen(const SocketAddress& address, const std::string& text);
  // `peer` is in the PeerTable already.
  void Connect(PeerId peer, const SocketAddress& address, const std::string& text);
  // The caller has reserved a place in the PeerTable.
  void Send(PeerId peer, uint16_t type, std::vector<uint8_t> payload);
  void Close(PeerId peer);
  std::string Transport(PeerId peer) const;

  // Progresses UCX once and acts on what happened. False: nothing did.
  bool Turn();
  // Sleeps until UCX has work, Wake, the next time-out, or `longest`.
  void Sleep(base::Nanos longest);
  // Ends the current or next Sleep. Any thread, while the engine lives.
  void Wake();
  // Closes the listener and every connection. Afterwards only Wake may be called: a thread whose
  // command was taken already may still be about to.
  void Shutdown();

 private:
  struct Connection;
  // One frame given to UCX. It stays in its connection's list, at one address, until UCX is done
  // with both header and payload.
  struct SendOp {
    Connection* connection = nullptr;
    std::list<SendOp>::iterator self;
    FrameHeader header;
    std::vector<uint8_t> payload;
    void* request = nullptr;
  };
  // A rendezvous receive that UCX is writing to.
  struct ReceiveOp {
    Connection* connection = nullptr;
    std::list<ReceiveOp>::iterator self;
    FrameHeader header;
    std::vector<uint8_t> payload;
    void* request = nullptr;
  };
  // A rendezvous that was announced and waits for its turn.
  struct Announced {
    FrameHeader header;
    void* descriptor = nullptr;
  };
  // A frame that waits for the connection to open.
  struct Unsent {
    uint16_t type;
    std::vector<uint8_t> payload;
  };
  // What epoll reports beside connections, which are named by their PeerId.
  static constexpr uint64_t kUcxEvents = 0;
  static constexpr uint64_t kListenerEvents = UINT64_MAX;
  static constexpr uint64_t kWakeEvents = UINT64_MAX - 1;

  enum class State { kOpening, kOpen, kClosing };
  // A UCX listener that waits for one peer.
  struct Offer {
    Engine* engine = nullptr;
    PeerId peer = 0;
    std::vector<ucp_conn_request_h> requests;  // not taken yet
    base::Nanos retire_at = 0;                 // once withdrawn
    UcxListener listener;
  };
  struct Connection {
    PeerId id = 0;
    Engine* engine = nullptr;
    std::string address;
    bool inbound = false;
    State state = State::kOpening;
    ControlConnection control;
    uint64_t token = 0;            // in the frames we receive
    uint64_t peers_token = 0;      // in the frames we send
    std::unique_ptr<Offer> offer;  // inbound, until UCX has connected
    ucp_ep_h endpoint = nullptr;
    bool wiring = false;  // a flush is under way that ends when UCX has chosen the wires
    void* wiring_request = nullptr;
    bool wired = false;          // it has, and we have sent our kOpen frame
    bool shares_memory = false;  // the wire is, or may be, shared memory
    bool heard = false;          // a frame of the peer's came in
    std::vector<Unsent> unsent;
    std::list<SendOp> sends;
    std::list<ReceiveOp> receives;
    std::deque<Announced> announced;
    uint64_t receiving_bytes = 0;  // of `receives`
    bool endpoint_closed = false;
  };

  // What UCX's callbacks noted since the last turn.
  struct Events {
    std::vector<std::pair<SendOp*, ucs_status_t>> sent;
    std::vector<std::pair<ReceiveOp*, ucs_status_t>> received;
    struct EagerFrame {
      PeerId peer;
      FrameHeader header;
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

  Engine(const FabricOptions& options, const FabricHandler& handler, PeerTable& peers,
         Counters& counters, std::atomic<PeerId>& last_peer_id);
  absl::Status Start();
  absl::Status StartWorker();

  // engine.cc
  absl::Status Watch(int fd, uint64_t id, uint32_t events);
  void PollSockets();
  void ActOnFailures();
  void CloseLateOpeners();
  void RestartIfBlocked();
  void Restart();
  void CloseAll(const absl::Status& status);
  void BeginClose(Connection& connection, const absl::Status& status);
  void RetireClosed();
  Connection* Find(PeerId peer) const;

  // engine_connect.cc
  void AcceptConnections();
  Connection& AddConnection(PeerId peer, ControlConnection control, std::string address,
                            bool inbound);
  void AdvanceControl(Connection& connection);
  absl::Status OfferEndpoint(Connection& connection);
  void ActOnRequests();
  void Withdraw(std::unique_ptr<Offer> offer);
  void RetireOffers(base::Nanos now);
  void OpenEndpoint(Connection& connection, ucp_ep_params_t& params);
  void ActOnWired();
  void OpenIfReady(Connection& connection);

  // engine_frames.cc
  absl::Status AcceptFrames();
  void StartSend(Connection& connection, FrameKind kind, uint16_t type,
                 std::vector<uint8_t> payload);
  void ActOnSent();
  void ActOnFrames();
  void ActOnReceived();
  void ActOnAnnounced();
  void StartReceives(Connection& connection);
  void Deliver(Connection& connection, const FrameHeader& header, std::vector<uint8_t> payload);
  ucs_status_t NoteFrame(const void* header, size_t header_bytes, void* data, size_t bytes,
                         const ucp_am_recv_param_t* param);

  static void OnConnectionRequest(ucp_conn_request_h request, void* offer);
  static void OnWired(void* request, ucs_status_t status, void* connection);
  static void OnEndpointError(void* connection, ucp_ep_h endpoint, ucs_status_t status);
  static void OnEndpointClosed(void* request, ucs_status_t status, void* connection);
  static void OnSent(void* request, ucs_status_t status, void* op);
  static void OnReceived(void* request, ucs_status_t status, size_t bytes, void* op);
  static ucs_status_t OnFrame(void* engine, const void* header, size_t header_bytes, void* data,
                              size_t bytes, const ucp_am_recv_param_t* param);

  const FabricOptions options_;
  const FabricHandler& handler_;
  PeerTable& peers_;
  Counters& counters_;
  std::atomic<PeerId>& last_peer_id_;

  UcxContext context_;
  UcxWorker worker_;
  ControlListener listener_;
  UniqueFd epoll_;  // UCX's event descriptor, the listener, the control connections
  UniqueFd wake_;   // an eventfd, for Wake
  base::Nanos next_poll_ = 0;

  absl::flat_hash_map<PeerId, std::unique_ptr<Connection>> connections_;
  absl::flat_hash_map<uint64_t, Connection*> by_token_;  // not those that are closing
  std::vector<PeerId> closing_;
  std::deque<std::unique_ptr<Offer>> withdrawn_;  // in order of retire_at
  // In order of deadline, because every connection gets the same time; ids may be long gone.
  std::deque<std::pair<base::Nanos, PeerId>> opening_;
  bool suspect_ = false;  // a peer was lost that may have blocked our shared-memory queue
  // Connections made since, by the time at which they must have been heard.
  std::deque<std::pair<base::Nanos, PeerId>> probation_;
  Events events_;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_ENGINE_H_
