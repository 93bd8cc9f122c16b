#include "transport/sender.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "transport/payload_path.h"
#include "transport/slot_access.h"

namespace specfabric::transport {
namespace {

// From this size on, a tensor sent from a slot goes to a slot of the receiver, by rendezvous where
// UCX can.
constexpr uint32_t kInSlotBytes = 32 << 10;

// UCX copies smaller payloads: naming a registration makes these slower, and a header in front of
// them makes them faster.
constexpr uint32_t kRegisteredBytes = 8 << 10;

bool IsReserved(const Outgoing& frame) {
  return frame.done == nullptr &&
         (frame.kind == FrameKind::kData || frame.kind == FrameKind::kTensor);
}

[[gnu::noinline]] absl::Status NotOpen(PeerId peer) {
  return absl::NotFoundError(absl::StrCat("peer ", peer, " is closed"));
}

[[gnu::noinline]] void FillPost(Outgoing& frame, uint16_t type, const TensorFields& fields,
                                const Lease& slot, uint32_t bytes, PostDone done, void* argument) {
  frame.kind = FrameKind::kTensor;
  frame.type = type;
  frame.fields = fields;
  frame.bytes = bytes;
  PointAtSlot(slot, frame);
  frame.done = done;
  frame.done_argument = argument;
}

}  // namespace

void PointAtSlot(const Lease& slot, Outgoing& frame) {
  frame.data = slot.data();
  frame.memory = slot.pool()->memory_handle();
  frame.headroom = slot.pool()->options().kind == MemoryKind::kHost;
}

// The path of small frames is inline and apart from what happens rarely, so that it saves no
// registers for the rest.

inline SendOp& Sender::SpareOp() {
  if (idle_.empty()) {
    idle_.push_back(*new SendOp);
    idle_.back().sender = this;
  }
  return idle_.back();
}

inline void Sender::Count(Connection& connection, FrameKind kind, uint32_t bytes) {
  if (kind != FrameKind::kData && kind != FrameKind::kTensor) return;
  ++state_.counters.frames_sent;
  state_.counters.bytes_sent += bytes;
  connection.bytes_sent += bytes;
  if (kind == FrameKind::kTensor) ++state_.counters.tensors_sent;
}

inline ucs_status_ptr_t Sender::SendFronted(Connection& connection, const WireHeader& header,
                                            const void* data, uint32_t bytes, SendOp& op) {
  const size_t header_bytes = HeaderBytes(header.kind);
  uint8_t* const front = static_cast<uint8_t*>(const_cast<void*>(data)) - header_bytes;
  WriteHeader(header, header_bytes, front);
  ucp_request_param_t params;
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_AM_SEND_FLAG_EAGER;
  params.cb.send = &Sender::OnSent;
  params.user_data = &op;
  return ucp_am_send_nbx(connection.endpoint, kFrontedMessage, nullptr, 0, front,
                         header_bytes + bytes, &params);
}

absl::Status Sender::Post(PeerId peer, uint16_t type, const TensorFields& fields, const Lease& slot,
                          uint32_t bytes, PostDone done, void* argument) {
  Connection* const connection = table_.Find(peer);
  if (connection == nullptr || connection->state != ConnectionState::kOpen) return NotOpen(peer);
  const bool on_host = slot.pool()->options().kind == MemoryKind::kHost;
  if (on_host && bytes < kRegisteredBytes) {
    const WireHeader header = MakeHeader(FrameKind::kTensor, type, connection->peers_token, fields);
    SendOp& op = SpareOp();
    const ucs_status_ptr_t result = SendFronted(*connection, header, slot.data(), bytes, op);
    if (result == nullptr) {
      Count(*connection, FrameKind::kTensor, bytes);
      done(argument, UCS_OK);
      return absl::OkStatus();
    }
    FillPost(TakeOp(*connection).frame, type, fields, slot, bytes, done, argument);
    Await(op, result);
  } else {
    SendOp& op = TakeOp(*connection);
    FillPost(op.frame, type, fields, slot, bytes, done, argument);
    Issue(op);
  }
  return absl::OkStatus();
}

void Sender::Send(PeerId peer, Outgoing frame) {
  SlotAccess::Mark(frame.lease, SlotState::kSending);
  Connection* connection = table_.Find(peer);
  if (connection == nullptr || connection->state == ConnectionState::kClosing) return;
  if (connection->state == ConnectionState::kOpening) {
    connection->unsent.push_back(std::move(frame));
  } else {
    SendOpen(*connection, std::move(frame));
  }
}

void Sender::SendUnsent(Connection& connection) {
  for (Outgoing& frame : std::exchange(connection.unsent, {})) {
    SendOpen(connection, std::move(frame));
  }
}

void Sender::SendOpen(Connection& connection, Outgoing frame) {
  if (hook_ != nullptr) {
    hook_->OnSend(connection, std::move(frame));
  } else {
    Start(connection, std::move(frame));
  }
}

void Sender::Start(Connection& connection, Outgoing frame) {
  SendOp& op = TakeOp(connection);
  op.frame = std::move(frame);
  Issue(op);
}

SendOp& Sender::TakeOp(Connection& connection) {
  SendOp& op = SpareOp();
  idle_.pop_back();
  connection.sends.push_back(op);
  op.connection = &connection;
  op.request = nullptr;
  return op;
}

void Sender::Issue(SendOp& op) {
  const Outgoing& frame = op.frame;
  op.header = MakeHeader(frame.kind, frame.type, op.connection->peers_token, frame.fields);
  if (frame.lease && frame.bytes >= kInSlotBytes) op.header.pool |= kInSlot;
  const ucs_status_ptr_t result =
      frame.headroom && frame.bytes < kRegisteredBytes
          ? SendFronted(*op.connection, op.header, frame.data, frame.bytes, op)
          : SendHeaded(*op.connection, op);
  if (result == nullptr) {
    Finish(op, UCS_OK);
  } else {
    Await(op, result);
  }
}

void Sender::Await(SendOp& op, ucs_status_ptr_t result) {
  if (UCS_PTR_IS_PTR(result)) {
    op.request = result;
  } else {
    state_.has_events = true;
    completed_.emplace_back(&op, UCS_PTR_STATUS(result));
  }
}

ucs_status_ptr_t Sender::SendHeaded(Connection& connection, SendOp& op) {
  const Outgoing& frame = op.frame;
  ucp_request_param_t params;
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &Sender::OnSent;
  params.user_data = &op;
  if (frame.memory != nullptr && frame.bytes >= kRegisteredBytes) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    params.memh = static_cast<ucp_mem_h>(frame.memory);
  }
  // Registered memory without headroom is GPU memory; saying so spares UCX from finding out.
  if (frame.memory != nullptr && !frame.headroom) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    params.memory_type = UCS_MEMORY_TYPE_CUDA;
  }
  if (runtime_.may_ask_for_rendezvous() && (op.header.pool & kInSlot) != 0) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_AM_SEND_FLAG_RNDV;
  }
  return ucp_am_send_nbx(connection.endpoint, kHeadedMessage, &op.header,
                         HeaderBytes(op.header.kind), frame.data, frame.bytes, &params);
}

// The first large tensor of a connection tells which wires all of its kind of memory take.
void Sender::NotePath(const SendOp& op) {
  const Outgoing& frame = op.frame;
  if (frame.memory == nullptr || frame.bytes < kInSlotBytes || op.request == nullptr) return;
  // Registered memory without headroom is GPU memory.
  const MemoryKind kind = frame.headroom ? MemoryKind::kHost : MemoryKind::kCuda;
  std::string& wires = op.connection->payload_wires[static_cast<size_t>(kind)];
  if (!wires.empty()) return;
  PayloadPath path = PathOfSend(op.request);
  if (path.wires.empty()) return;
  spdlog::info("transport peer={} tensors of {} memory leave over {}: {}", op.connection->address,
               Name(kind), path.wires, path.protocol);
  wires = std::move(path.wires);
}

void Sender::Finish(SendOp& op, ucs_status_t status) {
  Connection& connection = *op.connection;
  Outgoing& frame = op.frame;
  if (IsReserved(frame)) state_.peers.Release(connection.id, frame.bytes);
  if (status == UCS_OK) {
    Count(connection, frame.kind, frame.bytes);
    NotePath(op);
  }
  if (op.request != nullptr) ucp_request_free(op.request);
  const PostDone done = std::exchange(frame.done, nullptr);
  void* const argument = frame.done_argument;
  frame.lease.Release();
  frame.headroom = false;
  frame.memory = nullptr;
  if (frame.payload.capacity() != 0) frame.payload = {};
  connection.sends.erase(connection.sends.iterator_to(op));
  idle_.push_back(op);
  if (done != nullptr) done(argument, status);
}

void Sender::HandleCompletions() {
  // `done` may post again, which adds to the list.
  for (size_t i = 0; i < completed_.size(); ++i) {
    const auto [op, status] = completed_[i];
    Connection& connection = *op->connection;
    Finish(*op, status);
    if (status != UCS_OK && connection.state != ConnectionState::kClosing) {
      ++state_.counters.send_errors;
      table_.BeginClose(connection,
                        StatusFromUcs(status, absl::StrCat("lost ", connection.address)));
    }
  }
  completed_.clear();
}

void Sender::OnSent(void*, ucs_status_t status, void* op) {
  SendOp* const sent = static_cast<SendOp*>(op);
  sent->sender->state_.has_events = true;
  sent->sender->completed_.emplace_back(sent, status);
}

}  // namespace specfabric::transport
