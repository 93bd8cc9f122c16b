#include "transport/receiver.h"

#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "transport/gpu.h"
#include "transport/slot_access.h"

namespace specfabric::transport {
namespace {

// A peer's large messages under way get no more memory than this many of the largest frames; its
// further announcements wait.
constexpr uint64_t kLargestFramesAtOnce = 2;
constexpr size_t kMaxAnnounced = 1 << 16;

}  // namespace

absl::Status Receiver::Register() {
  for (const auto& [id, callback] : {std::pair(kHeadedMessage, &Receiver::OnHeaded),
                                     std::pair(kFrontedMessage, &Receiver::OnFronted)}) {
    ucp_am_handler_param_t params = {};
    params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                        UCP_AM_HANDLER_PARAM_FIELD_ARG;
    params.id = id;
    params.cb = callback;
    params.arg = this;
    const ucs_status_t status = ucp_worker_set_am_recv_handler(parts_.runtime.worker(), &params);
    if (status != UCS_OK) {
      return absl::UnavailableError(
          absl::StrCat("UCX has no active messages: ", ucs_status_string(status)));
    }
  }
  return absl::OkStatus();
}

void Receiver::Reset() {
  frames_.clear();
  announced_.clear();
  received_.clear();
}

// Most frames are small and come eagerly. Their path is inline and apart from what happens rarely,
// so that it saves no registers for that.

inline void Receiver::DeliverTensor(Connection& connection, Tensor&& tensor) {
  connection.last_heard = state_.now;
  Counters& counters = state_.counters;
  ++counters.frames_received;
  ++counters.tensors_received;
  counters.bytes_received += tensor.bytes.size();
  connection.bytes_received += tensor.bytes.size();
  if (state_.handler.on_tensor) state_.handler.on_tensor(connection.id, std::move(tensor));
}

// Nothing is allocated for a frame before its size is known to be allowed. Null: drop it.
inline Connection* Receiver::ReceiverOf(const WireHeader& header, size_t header_bytes,
                                        size_t bytes) {
  Connection* const connection = parts_.table.FindByToken(header.connection);
  if (connection == nullptr) {
    // A late frame of a closed connection, or an unauthenticated peer's.
    ++state_.counters.unattributed_frames;
    return nullptr;
  }
  if (IsValid(header, header_bytes, bytes, state_.options.max_frame_bytes)) return connection;
  RefuseInvalid(*connection, header, header_bytes, bytes);
  return nullptr;
}

// The payload is in UCX's memory.
inline void Receiver::TakeEager(Connection& connection, const WireHeader& header,
                                const void* payload, size_t bytes) {
  const absl::Span<const uint8_t> span(static_cast<const uint8_t*>(payload), bytes);
  if (IsTensor(header) && connection.state == ConnectionState::kOpen) {
    DeliverTensor(connection, {header.type, FieldsOf(header), span, {}});
  } else {
    CopyFrame(connection, header, span);
  }
}

ucs_status_t Receiver::OnHeaded(void* receiver, const void* header, size_t header_bytes, void* data,
                                size_t bytes, const ucp_am_recv_param_t* param) {
  Receiver& self = *static_cast<Receiver*>(receiver);
  const WireHeader read = ReadHeader(header, header_bytes);
  Connection* const connection = self.ReceiverOf(read, header_bytes, bytes);
  if (connection == nullptr) return UCS_OK;
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  const bool keepable = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0;
  const bool in_slot = IsTensor(read) && (read.pool & kInSlot) != 0;
  if (rendezvous || (keepable && in_slot)) {
    return self.Postpone(*connection, {read, static_cast<uint32_t>(bytes), data, !rendezvous});
  }
  self.TakeEager(*connection, read, data, bytes);
  return UCS_OK;
}

ucs_status_t Receiver::OnFronted(void* receiver, const void*, size_t, void* data, size_t bytes,
                                 const ucp_am_recv_param_t* param) {
  // Fronted frames are sent eagerly. One that is not has no header to read: it is refused.
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  const size_t header_bytes = rendezvous ? 0 : FrontedHeaderBytes(data, bytes);
  const WireHeader read = ReadHeader(data, header_bytes);
  Receiver& self = *static_cast<Receiver*>(receiver);
  Connection* const connection = self.ReceiverOf(read, header_bytes, bytes - header_bytes);
  if (connection != nullptr) {
    self.TakeEager(*connection, read, static_cast<uint8_t*>(data) + header_bytes,
                   bytes - header_bytes);
  }
  return UCS_OK;
}

void Receiver::CopyFrame(Connection& connection, const WireHeader& header,
                         absl::Span<const uint8_t> payload) {
  state_.counters.bytes_copied += payload.size();
  state_.has_events = true;
  frames_.push_back({connection.id, header, {payload.begin(), payload.end()}});
}

void Receiver::RefuseInvalid(Connection& connection, const WireHeader& header, size_t header_bytes,
                             size_t bytes) {
  RefuseFrame(connection, CheckFrame(header, header_bytes, bytes, state_.options.max_frame_bytes));
}

void Receiver::RefuseFrame(Connection& connection, const absl::Status& status) {
  ++state_.counters.refused_frames;
  spdlog::warn("transport peer={} frame refused: {}", connection.address,
               std::string(status.message()));
  parts_.table.Fail(connection.id, status);
}

ucs_status_t Receiver::Postpone(Connection& connection, const Announced& announced) {
  auto& waiting = IsTensor(announced.header) ? connection.announced_tensors : connection.announced;
  if (waiting.size() >= kMaxAnnounced) {
    RefuseFrame(connection, absl::ResourceExhaustedError(
                                absl::StrCat("more than ", kMaxAnnounced, " frames announced")));
    return UCS_OK;
  }
  waiting.push_back(announced);
  state_.has_events = true;
  announced_.push_back(connection.id);
  return UCS_INPROGRESS;
}

void Receiver::HandleFrames() {
  // A handler may make more of them, by closing a peer; those are for the next turn.
  std::vector<EagerFrame> frames;
  frames.swap(frames_);
  for (auto& [peer, header, payload] : frames) {
    if (Connection* connection = parts_.table.Find(peer)) {
      Deliver(*connection, header, std::move(payload));
    }
  }
}

void Receiver::HandleAnnounced() {
  for (size_t i = 0; i < announced_.size(); ++i) {
    if (Connection* connection = parts_.table.Find(announced_[i])) StartReceives(*connection);
  }
  announced_.clear();
}

void Receiver::StartReceives(Connection& connection) {
  while (!connection.announced_tensors.empty()) {
    const Announced announced = connection.announced_tensors.front();
    connection.announced_tensors.pop_front();
    StartTensor(connection, announced);
  }
  const uint64_t limit = kLargestFramesAtOnce * state_.options.max_frame_bytes;
  while (!connection.announced.empty()) {
    const Announced announced = connection.announced.front();
    const uint32_t bytes = announced.bytes;
    if (connection.receiving_bytes + bytes > limit) return;
    connection.announced.pop_front();
    connection.receiving_bytes += bytes;
    std::vector<uint8_t> payload(bytes);
    void* const data = payload.data();
    Receive(connection, announced, data, /*pool=*/nullptr).payload = std::move(payload);
  }
}

void Receiver::StartTensor(Connection& connection, const Announced& announced) {
  const TensorFields fields = FieldsOf(announced.header);
  const FabricHandler& handler = state_.handler;
  const auto drop = [&](const absl::Status& status) {
    ucp_am_data_release(parts_.runtime.worker(), announced.descriptor);
    if (status.ok()) return;
    ++state_.counters.refused_tensors;
    if (handler.on_refused) handler.on_refused(connection.id, fields, status);
  };
  SlotPool* const pool = parts_.pools.Find(fields.pool);
  if (pool == nullptr) {
    return drop(absl::InvalidArgumentError(
        absl::StrCat("tensor for pool ", fields.pool, ", which this process does not have")));
  }
  if (announced.bytes > pool->options().slot_bytes) {
    return drop(absl::InvalidArgumentError(absl::StrCat("tensor of ", announced.bytes,
                                                        " bytes for a pool of slots of ",
                                                        pool->options().slot_bytes)));
  }
  if (handler.admit_tensor && !handler.admit_tensor(connection.id, fields)) {
    ++state_.counters.stale_tensors;
    return drop(absl::OkStatus());
  }
  auto lease = SlotAccess::TakeToReceive(*pool, fields.fence);
  if (!lease.ok()) return drop(lease.status());
  void* const data = lease->data();
  ReceiveOp& op = announced.has_data ? CopyOut(connection, announced, data, pool->options().kind)
                                     : Receive(connection, announced, data, pool);
  op.lease = *std::move(lease);
  op.give_up_at = state_.now + state_.options.receive_timeout;
}

ReceiveOp& Receiver::AddReceive(Connection& connection, const Announced& announced) {
  ReceiveOp& op = connection.receives.emplace_back();
  op.receiver = this;
  op.connection = &connection;
  op.self = std::prev(connection.receives.end());
  op.header = announced.header;
  op.bytes = announced.bytes;
  return op;
}

// UCX's own receive would do, but outside its callback it never frees such data (1.13; since
// openucx/ucx#8368), or frees it wrongly where it came in several parts (until openucx/ucx#11468).
ReceiveOp& Receiver::CopyOut(Connection& connection, const Announced& announced, void* data,
                             MemoryKind kind) {
  ReceiveOp& op = AddReceive(connection, announced);
  ucs_status_t status = UCS_OK;
  if (kind == MemoryKind::kHost) {
    std::memcpy(data, announced.descriptor, op.bytes);
  } else if (absl::Status copied = CopyToGpu(announced.descriptor, op.bytes, data); !copied.ok()) {
    spdlog::error("transport peer={}: {}", connection.address, std::string(copied.message()));
    status = UCS_ERR_IO_ERROR;
  }
  ucp_am_data_release(parts_.runtime.worker(), announced.descriptor);
  state_.counters.bytes_copied += op.bytes;
  state_.has_events = true;
  received_.emplace_back(&op, status);
  return op;
}

// Into a slot of the pool; null: into memory that is not registered. The caller gives the memory's
// owner to the returned operation.
ReceiveOp& Receiver::Receive(Connection& connection, const Announced& announced, void* data,
                             const SlotPool* pool) {
  ReceiveOp& op = AddReceive(connection, announced);
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.recv_am = &Receiver::OnReceived;
  params.user_data = &op;
  if (pool != nullptr) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    params.memh = static_cast<ucp_mem_h>(pool->memory_handle());
    params.memory_type =
        pool->options().kind == MemoryKind::kCuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
  }
  const ucs_status_ptr_t result =
      ucp_am_recv_data_nbx(parts_.runtime.worker(), announced.descriptor, data, op.bytes, &params);
  if (UCS_PTR_IS_PTR(result)) {
    op.request = result;
  } else {
    state_.has_events = true;
    received_.emplace_back(&op, UCS_PTR_STATUS(result));
  }
  return op;
}

void Receiver::OnReceived(void*, ucs_status_t status, size_t bytes, void* op) {
  ReceiveOp* const received = static_cast<ReceiveOp*>(op);
  // The sender's data and its announcement are apart on the wire and may disagree.
  if (status == UCS_OK && bytes != received->bytes) status = UCS_ERR_MESSAGE_TRUNCATED;
  received->receiver->state_.has_events = true;
  received->receiver->received_.emplace_back(received, status);
}

void Receiver::HandleReceived() {
  std::vector<std::pair<ReceiveOp*, ucs_status_t>> received;
  received.swap(received_);
  for (const auto& [op, status] : received) Complete(*op, status);
}

void Receiver::Complete(ReceiveOp& op, ucs_status_t status) {
  Connection& connection = *op.connection;
  if (op.request != nullptr) ucp_request_free(op.request);
  ReceiveOp done = std::move(op);
  connection.receives.erase(done.self);
  if (!done.lease) connection.receiving_bytes -= done.payload.size();
  if (connection.state == ConnectionState::kClosing) return;
  if (status != UCS_OK) {
    parts_.table.BeginClose(connection,
                            StatusFromUcs(status, absl::StrCat("lost ", connection.address)));
    return;
  }
  if (!done.lease) {
    Deliver(connection, done.header, std::move(done.payload));
  } else if (!done.given_up) {
    FinishTensor(connection, done);
  }
  StartReceives(connection);
}

void Receiver::FinishTensor(Connection& connection, ReceiveOp& done) {
  SlotAccess::Mark(done.lease, SlotState::kReady);
  const absl::Span<const uint8_t> bytes(done.lease.data(), done.bytes);
  connection.heard = true;
  parts_.connector.OpenIfReady(connection);
  if (connection.state != ConnectionState::kOpen) return;
  SlotAccess::Mark(done.lease, SlotState::kReading);
  DeliverTensor(connection,
                {done.header.type, FieldsOf(done.header), bytes, std::move(done.lease)});
}

void Receiver::Deliver(Connection& connection, const WireHeader& header,
                       std::vector<uint8_t> payload) {
  if (connection.state == ConnectionState::kClosing) return;
  connection.heard = true;
  connection.last_heard = state_.now;
  parts_.connector.OpenIfReady(connection);
  // A peer sends data only once it has heard our kOpen frame, so our wires are known by then.
  if (connection.state != ConnectionState::kOpen) return;
  switch (static_cast<FrameKind>(header.kind)) {
    case FrameKind::kData:
      ++state_.counters.frames_received;
      state_.counters.bytes_received += payload.size();
      connection.bytes_received += payload.size();
      if (state_.handler.on_frame) {
        state_.handler.on_frame(connection.id, {header.type, std::move(payload)});
      }
      return;
    case FrameKind::kTensor:
    case FrameKind::kTaggedTensor:
    case FrameKind::kFencedTensor:
      return DeliverTensor(connection, {header.type, FieldsOf(header), payload, {}});
    case FrameKind::kPing:
      return parts_.sender.StartEmpty(connection, FrameKind::kPong);
    case FrameKind::kPong:
      if (connection.shares_memory) parts_.detector.NotePong(base::Now());
      return;
    case FrameKind::kOpen:
      return;
  }
}

}  // namespace specfabric::transport
