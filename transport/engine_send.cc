// Frames on their way out: faults, UCX's sends, their completion.

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/engine.h"

namespace specfabric::transport {
namespace {

// A tensor out of a slot lands in a slot of the receiver's from this size on, by rendezvous if UCX
// can.
constexpr uint32_t kInSlotBytes = 32 << 10;

// UCX copies what is smaller: it takes longer when it is told of a registration, and shorter with
// the header in front.
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

inline SendOp& Engine::SpareSendOp() {
  if (idle_sends_.empty()) idle_sends_.push_back(*new SendOp);
  return idle_sends_.back();
}

inline void Engine::CountSent(Connection& connection, FrameKind kind, uint32_t bytes) {
  if (kind != FrameKind::kData && kind != FrameKind::kTensor) return;
  ++counters_.frames_sent;
  counters_.bytes_sent += bytes;
  connection.bytes_sent += bytes;
  if (kind == FrameKind::kTensor) ++counters_.tensors_sent;
}

inline ucs_status_ptr_t Engine::SendFronted(Connection& connection, const WireHeader& header,
                                            const void* data, uint32_t bytes, SendOp& op) {
  const size_t header_bytes = HeaderBytes(header.kind);
  uint8_t* const front = static_cast<uint8_t*>(const_cast<void*>(data)) - header_bytes;
  WriteHeader(header, header_bytes, front);
  ucp_request_param_t params;
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_AM_SEND_FLAG_EAGER;
  params.cb.send = &Engine::OnSent;
  params.user_data = &op;
  return ucp_am_send_nbx(connection.endpoint, kFrontedMessage, nullptr, 0, front,
                         header_bytes + bytes, &params);
}

void Engine::Send(PeerId peer, Outgoing frame) {
  frame.lease.Mark(SlotState::kSending);
  Connection* connection = Find(peer);
  if (connection == nullptr || connection->state == State::kClosing) return;
  if (connection->state == State::kOpening) {
    connection->unsent.push_back(std::move(frame));
  } else {
    SendOrFault(*connection, std::move(frame));
  }
}

// What happens rarely is apart here too, as in engine_receive.cc.
absl::Status Engine::Post(PeerId peer, uint16_t type, const TensorFields& fields, const Lease& slot,
                          uint32_t bytes, PostDone done, void* argument) {
  Connection* const connection = Find(peer);
  if (connection == nullptr || connection->state != State::kOpen) return NotOpen(peer);
  const bool on_host = slot.pool()->options().kind == MemoryKind::kHost;
  if (on_host && bytes < kRegisteredBytes) {
    const WireHeader header = MakeHeader(FrameKind::kTensor, type, connection->peers_token, fields);
    SendOp& op = SpareSendOp();
    const ucs_status_ptr_t result = SendFronted(*connection, header, slot.data(), bytes, op);
    if (result == nullptr) {
      CountSent(*connection, FrameKind::kTensor, bytes);
      done(argument, UCS_OK);
      return absl::OkStatus();
    }
    FillPost(TakeSendOp(*connection).frame, type, fields, slot, bytes, done, argument);
    Await(op, result);
  } else {
    SendOp& op = TakeSendOp(*connection);
    FillPost(op.frame, type, fields, slot, bytes, done, argument);
    Issue(op);
  }
  return absl::OkStatus();
}

void Engine::SendOrFault(Connection& connection, Outgoing frame) {
  if (!faults_) return StartSend(connection, std::move(frame));
  const FaultDecision decision = faults_->DrawFate(frame.bytes);
  const base::Nanos now = base::Now();
  if (decision.faulty) ++counters_.faults;
  if (decision.copies == 0) return peers_.Release(connection.id, frame.bytes);
  const bool on_host = !frame.lease || frame.lease.pool()->options().kind == MemoryKind::kHost;
  if (decision.copies > 1 && on_host && peers_.Reserve(connection.id, frame.bytes).ok()) {
    Outgoing copy = {.kind = frame.kind, .type = frame.type, .fields = frame.fields};
    const uint8_t* bytes = static_cast<const uint8_t*>(frame.data);
    copy.payload.assign(bytes, bytes + frame.bytes);
    copy.data = copy.payload.data();
    copy.bytes = frame.bytes;
    delayed_.emplace(now + decision.copy_delay, Delayed{connection.id, std::move(copy)});
  }
  if (decision.corrupt && on_host) {
    const_cast<uint8_t*>(static_cast<const uint8_t*>(frame.data))[decision.corrupt_at] ^=
        decision.corrupt_with;
  }
  if (decision.delay == 0) return StartSend(connection, std::move(frame));
  delayed_.emplace(now + decision.delay, Delayed{connection.id, std::move(frame)});
}

void Engine::SendDelayed(base::Nanos now) {
  while (!delayed_.empty() && delayed_.begin()->first <= now) {
    Delayed due = std::move(delayed_.extract(delayed_.begin()).mapped());
    Connection* connection = Find(due.peer);
    if (connection == nullptr || connection->state != State::kOpen) continue;
    StartSend(*connection, std::move(due.frame));
  }
}

void Engine::StartSend(Connection& connection, Outgoing frame) {
  SendOp& op = TakeSendOp(connection);
  op.frame = std::move(frame);
  Issue(op);
}

SendOp& Engine::TakeSendOp(Connection& connection) {
  SendOp& op = SpareSendOp();
  idle_sends_.pop_back();
  connection.sends.push_back(op);
  op.connection = &connection;
  op.request = nullptr;
  return op;
}

void Engine::Issue(SendOp& op) {
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

void Engine::Await(SendOp& op, ucs_status_ptr_t result) {
  if (UCS_PTR_IS_PTR(result)) {
    op.request = result;
  } else {
    events_.any = true;
    events_.sent.emplace_back(&op, UCS_PTR_STATUS(result));
  }
}

ucs_status_ptr_t Engine::SendHeaded(Connection& connection, SendOp& op) {
  const Outgoing& frame = op.frame;
  ucp_request_param_t params;
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &Engine::OnSent;
  params.user_data = &op;
  if (frame.memory != nullptr && frame.bytes >= kRegisteredBytes) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    params.memh = static_cast<ucp_mem_h>(frame.memory);
  }
  // Of GPU memory there is none without a slab; UCX need not find out what it is.
  if (frame.memory != nullptr && !frame.headroom) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    params.memory_type = UCS_MEMORY_TYPE_CUDA;
  }
  if (may_ask_for_rendezvous_ && (op.header.pool & kInSlot) != 0) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_AM_SEND_FLAG_RNDV;
  }
  return ucp_am_send_nbx(connection.endpoint, kHeadedMessage, &op.header,
                         HeaderBytes(op.header.kind), frame.data, frame.bytes, &params);
}

void Engine::Finish(SendOp& op, ucs_status_t status) {
  Connection& connection = *op.connection;
  Outgoing& frame = op.frame;
  if (IsReserved(frame)) peers_.Release(connection.id, frame.bytes);
  if (status == UCS_OK) CountSent(connection, frame.kind, frame.bytes);
  if (op.request != nullptr) ucp_request_free(op.request);
  const PostDone done = std::exchange(frame.done, nullptr);
  void* const argument = frame.done_argument;
  frame.lease.Release();
  frame.headroom = false;
  frame.memory = nullptr;
  if (frame.payload.capacity() != 0) frame.payload = {};
  connection.sends.erase(connection.sends.iterator_to(op));
  idle_sends_.push_back(op);
  if (done != nullptr) done(argument, status);
}

void Engine::ActOnSent() {
  for (size_t i = 0; i < events_.sent.size(); ++i) {
    const auto [op, status] = events_.sent[i];
    Connection& connection = *op->connection;
    Finish(*op, status);
    if (status != UCS_OK && connection.state != State::kClosing) {
      ++counters_.send_errors;
      BeginClose(connection, StatusFromUcs(status, absl::StrCat("lost ", connection.address)));
    }
  }
  events_.sent.clear();
}

void Engine::OnSent(void*, ucs_status_t status, void* op) {
  SendOp* sent = static_cast<SendOp*>(op);
  Events& events = sent->connection->engine->events_;
  events.any = true;
  events.sent.emplace_back(sent, status);
}

}  // namespace specfabric::transport
