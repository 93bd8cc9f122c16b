// Frames on their way out: faults, UCX's sends, their completion.

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/engine.h"

namespace specfabric::transport {
namespace {

// A tensor out of a slot goes by rendezvous from this size on, so that it lands in a slot of the
// receiver's; below, UCX decides.
constexpr uint32_t kRendezvousBytes = 32 << 10;

// UCX copies what is smaller: it takes longer when it is told of a registration, and shorter with
// the header in front.
constexpr uint32_t kRegisteredBytes = 8 << 10;

bool IsReserved(const Outgoing& frame) {
  return frame.done == nullptr &&
         (frame.kind == FrameKind::kData || frame.kind == FrameKind::kTensor);
}

}  // namespace

void PointAtSlot(const Lease& slot, Outgoing& frame) {
  frame.data = slot.data();
  frame.memory = slot.pool()->memory_handle();
  frame.headroom = slot.pool()->options().kind == MemoryKind::kHost;
}

void Engine::Send(PeerId peer, Outgoing frame) {
  frame.lease.Mark(SlotState::kSending);
  Connection* connection = Find(peer);
  if (connection == nullptr || connection->state == State::kClosing) return;
  if (connection->state == State::kOpening) {
    connection->unsent.push_back(std::move(frame));
  } else {
    Judge(*connection, std::move(frame));
  }
}

absl::Status Engine::Post(PeerId peer, uint16_t type, const TensorFields& fields,
                          const Lease& slot, uint32_t bytes, PostDone done, void* argument) {
  Connection* connection = Find(peer);
  if (connection == nullptr || connection->state != State::kOpen) {
    return absl::NotFoundError(absl::StrCat("peer ", peer, " is closed"));
  }
  SendOp& op = TakeSendOp(*connection);
  op.frame.kind = FrameKind::kTensor;
  op.frame.type = type;
  op.frame.fields = fields;
  op.frame.bytes = bytes;
  PointAtSlot(slot, op.frame);
  op.frame.done = done;
  op.frame.done_argument = argument;
  Issue(op);
  return absl::OkStatus();
}

void Engine::Judge(Connection& connection, Outgoing frame) {
  if (!faults_) return StartSend(connection, std::move(frame));
  const Fate fate = faults_->Judge(frame.bytes);
  const base::Nanos usual = options_.faults.simulated_rtt / 2;
  if (fate.copies != 1 || fate.corrupt || fate.delay != usual) ++counters_.faults;
  if (fate.copies == 0) return peers_.Release(connection.id, frame.bytes);
  const bool on_host = !frame.lease || frame.lease.pool()->options().kind == MemoryKind::kHost;
  if (fate.copies > 1 && on_host && peers_.Reserve(connection.id, frame.bytes).ok()) {
    Outgoing copy = {.kind = frame.kind, .type = frame.type, .fields = frame.fields};
    const uint8_t* bytes = static_cast<const uint8_t*>(frame.data);
    copy.payload.assign(bytes, bytes + frame.bytes);
    copy.data = copy.payload.data();
    copy.bytes = frame.bytes;
    delayed_.emplace(now_ + fate.copy_delay, Delayed{connection.id, std::move(copy)});
  }
  if (fate.corrupt && on_host) {
    const_cast<uint8_t*>(static_cast<const uint8_t*>(frame.data))[fate.corrupt_at] ^=
        fate.corrupt_with;
  }
  if (fate.delay == 0) return StartSend(connection, std::move(frame));
  delayed_.emplace(now_ + fate.delay, Delayed{connection.id, std::move(frame)});
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
  if (idle_sends_.empty()) idle_sends_.push_back(*new SendOp);
  SendOp& op = idle_sends_.back();
  idle_sends_.pop_back();
  connection.sends.push_back(op);
  op.connection = &connection;
  op.request = nullptr;
  return op;
}

void Engine::Issue(SendOp& op) {
  const Outgoing& frame = op.frame;
  op.header = MakeHeader(frame.kind, frame.type, op.connection->peers_token, frame.fields);
  const size_t header_bytes = HeaderBytes(op.header.kind);
  ucp_request_param_t params;
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &Engine::OnSent;
  params.user_data = &op;
  ucs_status_ptr_t result;
  if (frame.headroom && frame.bytes < kRegisteredBytes) {
    uint8_t* const front = static_cast<uint8_t*>(const_cast<void*>(frame.data)) - header_bytes;
    std::memcpy(front, &op.header, header_bytes);
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_AM_SEND_FLAG_EAGER;
    result = ucp_am_send_nbx(op.connection->endpoint, kFrontedMessage, nullptr, 0, front,
                             header_bytes + frame.bytes, &params);
  } else {
    if (frame.memory != nullptr && frame.bytes >= kRegisteredBytes) {
      params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
      params.memh = static_cast<ucp_mem_h>(frame.memory);
    }
    if (frame.lease && frame.bytes >= kRendezvousBytes) {
      params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
      params.flags = UCP_AM_SEND_FLAG_RNDV;
    }
    result = ucp_am_send_nbx(op.connection->endpoint, kHeadedMessage, &op.header, header_bytes,
                             frame.data, frame.bytes, &params);
  }
  if (UCS_PTR_IS_PTR(result)) {
    op.request = result;
  } else if (result == nullptr) {
    Finish(op, UCS_OK);
  } else {
    events_.any = true;
    events_.sent.emplace_back(&op, UCS_PTR_STATUS(result));
  }
}

void Engine::Finish(SendOp& op, ucs_status_t status) {
  Connection& connection = *op.connection;
  Outgoing& frame = op.frame;
  if (IsReserved(frame)) peers_.Release(connection.id, frame.bytes);
  if (status == UCS_OK && (frame.kind == FrameKind::kData || frame.kind == FrameKind::kTensor)) {
    ++counters_.frames_sent;
    counters_.bytes_sent += frame.bytes;
    if (frame.kind == FrameKind::kTensor) ++counters_.tensors_sent;
  }
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
