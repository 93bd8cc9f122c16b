#ifndef SPECFABRIC_TRANSPORT_ENGINE_H_
#define SPECFABRIC_TRANSPORT_ENGINE_H_

// All dealings with UCX: connections, frames in both directions, time-outs, closing.
// Single-threaded (the fabric's progress thread) but for Wake. Private to transport/.
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
  std::atomic<uint64_t> connect_failures{0}, wakeups{0}, unattributed_frames{0}, releasing{0};

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
  // A frame that waits for the endpoint.
  struct Unsent {
    uint16_t type;
    std::vector<uint8_t> payload;
  };
  enum class State { kOpening, kOpen, kClosing };
  struct Connection {
    PeerId id = 0;
    Engine* engine = nullptr;
    std::string address;
    bool inbound = false;
    State state = State::kOpening;
    ControlConnection control;
    uint64_t token = 0;        // in the frames we receive
    uint64_t peers_token = 0;  // in the frames we send
    ucp_ep_h endpoint = nullptr;
    bool heard = false;  // the peer's kOpen frame came in; it may come before our endpoint is there
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
    struct Failure {
      PeerId peer;
      absl::Status status;
    };
    std::vector<Failure> failures;
  };

  Engine(const FabricOptions& options, const FabricHandler& handler, PeerTable& peers,
         Counters& counters, std::atomic<PeerId>& last_peer_id);
  absl::Status Start();

  // engine.cc
  absl::Status Watch(int fd, uint64_t id, uint32_t events);
  void PollSockets();
  void AcceptConnections();
  Connection& AddConnection(PeerId peer, ControlConnection control, std::string address,
                            bool inbound);
  void AdvanceControl(Connection& connection);
  void OpenEndpoint(Connection& connection, const Introduction& peer);
  void Opened(Connection& connection);
  void ActOnFailures();
  void CloseLateOpeners();
  void BeginClose(Connection& connection, const absl::Status& status);
  void RetireClosed();
  Connection* Find(PeerId peer) const;

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
  std::vector<uint8_t> worker_address_;
  ControlListener listener_;
  UniqueFd epoll_;  // UCX's event descriptor, the listener, the control connections
  base::Nanos next_poll_ = 0;

  absl::flat_hash_map<PeerId, std::unique_ptr<Connection>> connections_;
  absl::flat_hash_map<uint64_t, Connection*> by_token_;  // not those that are closing
  std::vector<PeerId> closing_;
  // In order of deadline, because every connection gets the same time; ids may be long gone.
  std::deque<std::pair<base::Nanos, PeerId>> opening_;
  Events events_;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_ENGINE_H_
