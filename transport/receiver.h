#ifndef SPECFABRIC_TRANSPORT_RECEIVER_H_
#define SPECFABRIC_TRANSPORT_RECEIVER_H_

// Frames from peers: UCX's active-message callbacks, rendezvous receives into messages and slots,
// and their delivery to the handler. A slot is free -> receiving -> ready -> reading -> free, and
// quarantined where the connection closes or its time passes while UCX may still write to it.
//
// Private to transport/; on the engine's thread. on_tensor is called from within UCX's callback for
// a tensor that came eagerly; everything else waits for the next turn.

#include <ucp/api/ucp.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "transport/connection_table.h"
#include "transport/connector.h"
#include "transport/engine_state.h"
#include "transport/frame.h"
#include "transport/sender.h"
#include "transport/slot_pools.h"
#include "transport/ucx_runtime.h"

namespace specfabric::transport {

class Receiver {
 public:
  // The other parts of the engine, which outlive the receiver.
  struct Parts {
    UcxRuntime& runtime;
    BlockedQueueDetector& detector;
    ConnectionTable& table;
    SlotPools& pools;
    Sender& sender;
    Connector& connector;
  };
  Receiver(EngineState& state, const Parts& parts) : state_(state), parts_(parts) {}

  // Has the worker call this receiver for every frame.
  absl::Status Register();
  // Handle what the callbacks recorded: eager frames that were copied, announced rendezvous,
  // completed receives.
  void HandleFrames();
  void HandleAnnounced();
  void HandleReceived();
  // The worker has ended.
  void Reset();

 private:
  struct EagerFrame {
    PeerId peer;
    WireHeader header;
    std::vector<uint8_t> payload;
  };

  // In the callbacks.
  Connection* ReceiverOf(const WireHeader& header, size_t header_bytes, size_t bytes);
  void TakeEager(Connection& connection, const WireHeader& header, const void* payload,
                 size_t bytes);
  void CopyFrame(Connection& connection, const WireHeader& header,
                 absl::Span<const uint8_t> payload);
  void RefuseInvalid(Connection& connection, const WireHeader& header, size_t header_bytes,
                     size_t bytes);
  void RefuseFrame(Connection& connection, const absl::Status& status);
  ucs_status_t Postpone(Connection& connection, const Announced& announced);

  // In a turn.
  void StartReceives(Connection& connection);
  void StartTensor(Connection& connection, const Announced& announced);
  ReceiveOp& AddReceive(Connection& connection, const Announced& announced);
  ReceiveOp& CopyOut(Connection& connection, const Announced& announced, void* data,
                     MemoryKind kind);
  ReceiveOp& Receive(Connection& connection, const Announced& announced, void* data,
                     const SlotPool* pool);
  void Complete(ReceiveOp& op, ucs_status_t status);
  void FinishTensor(Connection& connection, ReceiveOp& done);
  void Deliver(Connection& connection, const WireHeader& header, std::vector<uint8_t> payload);
  void DeliverTensor(Connection& connection, Tensor&& tensor);

  static void OnReceived(void* request, ucs_status_t status, size_t bytes, void* op);
  static ucs_status_t OnHeaded(void* receiver, const void* header, size_t header_bytes, void* data,
                               size_t bytes, const ucp_am_recv_param_t* param);
  static ucs_status_t OnFronted(void* receiver, const void* header, size_t header_bytes, void* data,
                                size_t bytes, const ucp_am_recv_param_t* param);

  EngineState& state_;
  const Parts parts_;
  std::vector<EagerFrame> frames_;
  std::vector<PeerId> announced_;
  std::vector<std::pair<ReceiveOp*, ucs_status_t>> received_;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_RECEIVER_H_
