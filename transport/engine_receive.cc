// Frames coming in, eagerly and by rendezvous.

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "transport/engine.h"
#include "transport/gpu.h"

namespace specfabric::transport {
namespace {

// A peer whose large messages are under way gets no more memory than this many of the largest; its
// further announcements wait.
constexpr uint64_t kLargestFramesAtOnce = 2;
constexpr size_t kMaxAnnounced = 1 << 16;

}  // namespace

absl::Status Engine::AcceptFrames() {
  for (const auto& [id, callback] : {std::pair(kHeadedMessage, &Engine::OnHeaded),
                                     std::pair(kFrontedMessage, &Engine::OnFronted)}) {
    ucp_am_handler_param_t params = {};
    params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                        UCP_AM_HANDLER_PARAM_FIELD_ARG;
    params.id = id;
    params.cb = callback;
    params.arg = this;
    const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_.get(), &params);
    if (status != UCS_OK) {
      return absl::UnavailableError(
          absl::StrCat("UCX has no active messages: ", ucs_status_string(status)));
    }
  }
  return absl::OkStatus();
}

// Most frames are small and come eagerly. Their path is inline and apart from what happens rarely,
// so that it saves no registers for that.

inline void Engine::DeliverTensor(Connection& connection, Tensor&& tensor) {
  connection.last_heard = now_;
  ++counters_.frames_received;
  ++counters_.tensors_received;
  counters_.bytes_received += tensor.bytes.size();
  connection.bytes_received += tensor.bytes.size();
  if (handler_.on_tensor) handler_.on_tensor(connection.id, std::move(tensor));
}

// Nothing is allocated for a frame before its size is known to be allowed. Null: drop it.
inline Connection* Engine::ReceiverOf(const WireHeader& header, size_t header_bytes, size_t bytes) {
  Connection* const connection = by_index_[PeerTable::IndexOf(header.connection)];
  if (connection == nullptr || connection->token != header.connection ||
      connection->state == State::kClosing) {
    // Late frames of a closed connection, or an unauthenticated peer's.
    ++counters_.unattributed_frames;
    return nullptr;
  }
  if (IsSound(header, header_bytes, bytes, options_.max_frame_bytes)) return connection;
  RefuseUnsound(*connection, header, header_bytes, bytes);
  return nullptr;
}

// An eager one, whose payload is UCX's.
inline void Engine::TakeEager(Connection& connection, const WireHeader& header, const void* payload,
                              size_t bytes) {
  const absl::Span<const uint8_t> span(static_cast<const uint8_t*>(payload), bytes);
  if (IsTensor(header) && connection.state == State::kOpen) {
    DeliverTensor(connection, {header.type, FieldsOf(header), span, {}});
  } else {
    NoteFrame(connection, header, span);
  }
}

ucs_status_t Engine::OnHeaded(void* engine, const void* header, size_t header_bytes, void* data,
                              size_t bytes, const ucp_am_recv_param_t* param) {
  Engine& self = *static_cast<Engine*>(engine);
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

ucs_status_t Engine::OnFronted(void* engine, const void*, size_t, void* data, size_t bytes,
                               const ucp_am_recv_param_t* param) {
  // Fronted frames are sent eagerly. One that is not has no header to read: it is refused.
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  const size_t header_bytes = rendezvous ? 0 : FrontedHeaderBytes(data, bytes);
  const WireHeader read = ReadHeader(data, header_bytes);
  Engine& self = *static_cast<Engine*>(engine);
  Connection* const connection = self.ReceiverOf(read, header_bytes, bytes - header_bytes);
  if (connection != nullptr) {
    self.TakeEager(*connection, read, static_cast<uint8_t*>(data) + header_bytes,
                   bytes - header_bytes);
  }
  return UCS_OK;
}

void Engine::NoteFrame(Connection& connection, const WireHeader& header,
                       absl::Span<const uint8_t> payload) {
  counters_.bytes_copied += payload.size();
  events_.any = true;
  events_.frames.push_back({connection.id, header, {payload.begin(), payload.end()}});
}

void Engine::RefuseUnsound(Connection& connection, const WireHeader& header, size_t header_bytes,
                           size_t bytes) {
  RefuseFrame(connection, CheckFrame(header, header_bytes, bytes, options_.max_frame_bytes));
}

void Engine::RefuseFrame(Connection& connection, const absl::Status& status) {
  ++counters_.refused_frames;
  spdlog::warn("transport peer={} frame refused: {}", connection.address,
               std::string(status.message()));
  Fail(connection.id, status);
}

ucs_status_t Engine::Postpone(Connection& connection, const Announced& announced) {
  auto& waiting = IsTensor(announced.header) ? connection.announced_tensors : connection.announced;
  if (waiting.size() >= kMaxAnnounced) {
    RefuseFrame(connection, absl::ResourceExhaustedError(
                                absl::StrCat("more than ", kMaxAnnounced, " frames announced")));
    return UCS_OK;
  }
  waiting.push_back(announced);
  events_.any = true;
  events_.announced.push_back(connection.id);
  return UCS_INPROGRESS;
}

void Engine::ActOnFrames() {
  // A handler may make more of them, by closing a peer; those are for the next turn.
  std::vector<Events::EagerFrame> frames;
  frames.swap(events_.frames);
  for (auto& [peer, header, payload] : frames) {
    if (Connection* connection = Find(peer)) Deliver(*connection, header, std::move(payload));
  }
}

void Engine::ActOnAnnounced() {
  for (size_t i = 0; i < events_.announced.size(); ++i) {
    if (Connection* connection = Find(events_.announced[i])) StartReceives(*connection);
  }
  events_.announced.clear();
}

void Engine::StartReceives(Connection& connection) {
  while (!connection.announced_tensors.empty()) {
    const Announced announced = connection.announced_tensors.front();
    connection.announced_tensors.pop_front();
    StartTensor(connection, announced);
  }
  const uint64_t limit = kLargestFramesAtOnce * options_.max_frame_bytes;
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

void Engine::StartTensor(Connection& connection, const Announced& announced) {
  const TensorFields fields = FieldsOf(announced.header);
  const auto drop = [&](const absl::Status& status) {
    ucp_am_data_release(worker_.get(), announced.descriptor);
    if (status.ok()) return;
    ++counters_.refused_tensors;
    if (handler_.on_refused) handler_.on_refused(connection.id, fields, status);
  };
  const auto pool = pools_.find(fields.pool);
  if (pool == pools_.end()) {
    return drop(absl::InvalidArgumentError(
        absl::StrCat("tensor for pool ", fields.pool, ", which this process does not have")));
  }
  if (announced.bytes > pool->second->options().slot_bytes) {
    return drop(absl::InvalidArgumentError(absl::StrCat("tensor of ", announced.bytes,
                                                        " bytes for a pool of slots of ",
                                                        pool->second->options().slot_bytes)));
  }
  if (handler_.admit_tensor && !handler_.admit_tensor(connection.id, fields)) {
    ++counters_.stale_tensors;
    return drop(absl::OkStatus());
  }
  auto lease = pool->second->Take(fields.fence, SlotState::kReceiving);
  if (!lease.ok()) return drop(lease.status());
  void* const data = lease->data();
  ReceiveOp& op = announced.has_data
                      ? CopyOut(connection, announced, data, pool->second->options().kind)
                      : Receive(connection, announced, data, pool->second.get());
  op.lease = *std::move(lease);
  op.give_up_at = now_ + options_.receive_timeout;
}

ReceiveOp& Engine::AddReceive(Connection& connection, const Announced& announced) {
  ReceiveOp& op = connection.receives.emplace_back();
  op.connection = &connection;
  op.self = std::prev(connection.receives.end());
  op.header = announced.header;
  op.bytes = announced.bytes;
  return op;
}

// UCX's own receive would do, but outside its callback it never frees such data (1.13; since
// openucx/ucx#8368), or frees it wrongly where it came in several parts (until openucx/ucx#11468).
ReceiveOp& Engine::CopyOut(Connection& connection, const Announced& announced, void* data,
                           MemoryKind kind) {
  ReceiveOp& op = AddReceive(connection, announced);
  ucs_status_t status = UCS_OK;
  if (kind == MemoryKind::kHost) {
    std::memcpy(data, announced.descriptor, op.bytes);
  } else if (absl::Status copied = CopyToGpu(announced.descriptor, op.bytes, data); !copied.ok()) {
    spdlog::error("transport peer={}: {}", connection.address, std::string(copied.message()));
    status = UCS_ERR_IO_ERROR;
  }
  ucp_am_data_release(worker_.get(), announced.descriptor);
  counters_.bytes_copied += op.bytes;
  events_.any = true;
  events_.received.emplace_back(&op, status);
  return op;
}

// Into memory of the pool; null: of nobody's registering. The caller gives the memory's owner to
// the returned operation.
ReceiveOp& Engine::Receive(Connection& connection, const Announced& announced, void* data,
                           const SlotPool* pool) {
  ReceiveOp& op = AddReceive(connection, announced);
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.recv_am = &Engine::OnReceived;
  params.user_data = &op;
  if (pool != nullptr) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    params.memh = static_cast<ucp_mem_h>(pool->memory_handle());
    params.memory_type =
        pool->options().kind == MemoryKind::kCuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
  }
  const ucs_status_ptr_t result =
      ucp_am_recv_data_nbx(worker_.get(), announced.descriptor, data, op.bytes, &params);
  if (UCS_PTR_IS_PTR(result)) {
    op.request = result;
  } else {
    events_.any = true;
    events_.received.emplace_back(&op, UCS_PTR_STATUS(result));
  }
  return op;
}

void Engine::OnReceived(void*, ucs_status_t status, size_t bytes, void* op) {
  ReceiveOp* received = static_cast<ReceiveOp*>(op);
  // The sender's data and its announcement are apart on the wire and may disagree.
  if (status == UCS_OK && bytes != received->bytes) {
    status = UCS_ERR_MESSAGE_TRUNCATED;
  }
  Events& events = received->connection->engine->events_;
  events.any = true;
  events.received.emplace_back(received, status);
}

void Engine::ActOnReceived() {
  std::vector<std::pair<ReceiveOp*, ucs_status_t>> received;
  received.swap(events_.received);
  for (const auto& [op, status] : received) {
    Connection& connection = *op->connection;
    if (op->request != nullptr) ucp_request_free(op->request);
    ReceiveOp done = std::move(*op);
    connection.receives.erase(op->self);
    if (!done.lease) connection.receiving_bytes -= done.payload.size();
    if (connection.state == State::kClosing) continue;
    if (status != UCS_OK) {
      BeginClose(connection, StatusFromUcs(status, absl::StrCat("lost ", connection.address)));
      continue;
    }
    if (!done.lease) {
      Deliver(connection, done.header, std::move(done.payload));
    } else if (!done.given_up) {
      done.lease.Mark(SlotState::kReady);
      const absl::Span<const uint8_t> bytes(done.lease.data(), done.bytes);
      connection.heard = true;
      OpenIfReady(connection);
      if (connection.state != State::kOpen) continue;
      done.lease.Mark(SlotState::kReading);
      DeliverTensor(connection,
                    {done.header.type, FieldsOf(done.header), bytes, std::move(done.lease)});
    }
    StartReceives(connection);
  }
}

void Engine::Deliver(Connection& connection, const WireHeader& header,
                     std::vector<uint8_t> payload) {
  if (connection.state == State::kClosing) return;
  connection.heard = true;
  connection.last_heard = now_;
  OpenIfReady(connection);
  // Data only comes from a peer that has heard us, so we have had our wires since.
  if (connection.state != State::kOpen) return;
  switch (static_cast<FrameKind>(header.kind)) {
    case FrameKind::kData:
      ++counters_.frames_received;
      counters_.bytes_received += payload.size();
      connection.bytes_received += payload.size();
      if (handler_.on_frame) {
        handler_.on_frame(connection.id, {header.type, std::move(payload)});
      }
      return;
    case FrameKind::kTensor:
    case FrameKind::kTaggedTensor:
    case FrameKind::kFencedTensor:
      return DeliverTensor(connection, {header.type, FieldsOf(header), payload, {}});
    case FrameKind::kPing:
      return StartSend(connection, {.kind = FrameKind::kPong});
    case FrameKind::kPong:
      if (connection.shares_memory) memory_answered_ = base::Now();
      return;
    case FrameKind::kOpen:
      return;
  }
}

}  // namespace specfabric::transport
