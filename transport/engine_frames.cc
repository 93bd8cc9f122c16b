// Frames: sending, and receiving both eagerly and by rendezvous.

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "transport/engine.h"

namespace specfabric::transport {
namespace {

constexpr unsigned kActiveMessageId = 1;
// A peer whose large frames are under way gets no more memory than this many of the largest; its
// further announcements wait.
constexpr uint64_t kLargestFramesAtOnce = 2;
constexpr size_t kMaxAnnounced = 1 << 16;

}  // namespace

absl::Status Engine::AcceptFrames() {
  ucp_am_handler_param_t params = {};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = kActiveMessageId;
  params.cb = &Engine::OnFrame;
  params.arg = this;
  const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_.get(), &params);
  if (status == UCS_OK) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("UCX has no active messages: ", ucs_status_string(status)));
}

void Engine::Send(PeerId peer, uint16_t type, std::vector<uint8_t> payload) {
  Connection* connection = Find(peer);
  if (connection == nullptr || connection->state == State::kClosing) return;
  if (connection->state == State::kOpening) {
    connection->unsent.push_back({type, std::move(payload)});
    return;
  }
  StartSend(*connection, FrameKind::kData, type, std::move(payload));
}

void Engine::StartSend(Connection& connection, FrameKind kind, uint16_t type,
                       std::vector<uint8_t> payload) {
  SendOp& op = connection.sends.emplace_back();
  op.connection = &connection;
  op.self = std::prev(connection.sends.end());
  op.header = {kFrameMagic,
               kFrameVersion,
               type,
               static_cast<uint32_t>(payload.size()),
               static_cast<uint32_t>(kind),
               connection.peers_token};
  op.payload = std::move(payload);
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &Engine::OnSent;
  params.user_data = &op;
  const ucs_status_ptr_t result =
      ucp_am_send_nbx(connection.endpoint, kActiveMessageId, &op.header, sizeof(op.header),
                      op.payload.data(), op.payload.size(), &params);
  if (UCS_PTR_IS_PTR(result)) {
    op.request = result;
  } else {
    events_.sent.emplace_back(&op, UCS_PTR_STATUS(result));
  }
}

void Engine::ActOnSent() {
  std::vector<std::pair<SendOp*, ucs_status_t>> sent;
  sent.swap(events_.sent);
  for (const auto& [op, status] : sent) {
    Connection& connection = *op->connection;
    const bool data = op->header.kind == static_cast<uint32_t>(FrameKind::kData);
    if (data) {
      peers_.Release(connection.id);
      if (status == UCS_OK) {
        ++counters_.frames_sent;
        counters_.bytes_sent += op->header.payload_bytes;
      }
    }
    if (op->request != nullptr) ucp_request_free(op->request);
    connection.sends.erase(op->self);
    if (status != UCS_OK && connection.state != State::kClosing) {
      ++counters_.send_errors;
      BeginClose(connection, StatusFromUcs(status, absl::StrCat("lost ", connection.address)));
    }
  }
}

void Engine::OnSent(void*, ucs_status_t status, void* op) {
  SendOp* sent = static_cast<SendOp*>(op);
  sent->connection->engine->events_.sent.emplace_back(sent, status);
}

ucs_status_t Engine::OnFrame(void* engine, const void* header, size_t header_bytes, void* data,
                             size_t bytes, const ucp_am_recv_param_t* param) {
  return static_cast<Engine*>(engine)->NoteFrame(header, header_bytes, data, bytes, param);
}

// UCS_OK lets UCX drop its copy, UCS_INPROGRESS keeps a rendezvous descriptor for later. Nothing is
// allocated for a rendezvous before its size is known to be allowed.
ucs_status_t Engine::NoteFrame(const void* header, size_t header_bytes, void* data, size_t bytes,
                               const ucp_am_recv_param_t* param) {
  FrameHeader named;
  if (header_bytes == sizeof(named)) std::memcpy(&named, header, sizeof(named));
  const auto entry = by_token_.find(named.connection);
  if (entry == by_token_.end()) {
    // Late frames of a closed connection, or a stranger's.
    ++counters_.unattributed_frames;
    return UCS_OK;
  }
  Connection& connection = *entry->second;
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  absl::Status status = CheckFrameHeader(named, bytes, options_.max_frame_bytes);
  if (rendezvous && connection.announced.size() >= kMaxAnnounced) {
    status = absl::ResourceExhaustedError(
        absl::StrCat("more than ", kMaxAnnounced, " large frames announced"));
  }
  if (!status.ok()) {
    ++counters_.refused_frames;
    spdlog::warn("transport peer={} frame refused: {}", connection.address,
                 std::string(status.message()));
    events_.failures.push_back({connection.id, status});
    return UCS_OK;
  }
  if (rendezvous) {
    connection.announced.push_back({named, data});
    events_.announced.push_back(connection.id);
    return UCS_INPROGRESS;
  }
  const uint8_t* payload = static_cast<const uint8_t*>(data);
  events_.frames.push_back({connection.id, named, {payload, payload + bytes}});
  return UCS_OK;
}

void Engine::ActOnFrames() {
  std::vector<Events::EagerFrame> frames;
  frames.swap(events_.frames);
  for (auto& [peer, header, payload] : frames) {
    if (Connection* connection = Find(peer)) Deliver(*connection, header, std::move(payload));
  }
}

void Engine::ActOnAnnounced() {
  std::vector<PeerId> announced;
  announced.swap(events_.announced);
  for (PeerId peer : announced) {
    if (Connection* connection = Find(peer)) StartReceives(*connection);
  }
}

void Engine::StartReceives(Connection& connection) {
  const uint64_t limit = kLargestFramesAtOnce * options_.max_frame_bytes;
  while (!connection.announced.empty()) {
    const Announced announced = connection.announced.front();
    if (connection.receiving_bytes + announced.header.payload_bytes > limit) return;
    connection.announced.pop_front();
    connection.receiving_bytes += announced.header.payload_bytes;
    ReceiveOp& op = connection.receives.emplace_back();
    op.connection = &connection;
    op.self = std::prev(connection.receives.end());
    op.header = announced.header;
    op.payload.resize(announced.header.payload_bytes);
    ucp_request_param_t params = {};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    params.cb.recv_am = &Engine::OnReceived;
    params.user_data = &op;
    const ucs_status_ptr_t result = ucp_am_recv_data_nbx(
        worker_.get(), announced.descriptor, op.payload.data(), op.payload.size(), &params);
    if (UCS_PTR_IS_PTR(result)) {
      op.request = result;
    } else {
      events_.received.emplace_back(&op, UCS_PTR_STATUS(result));
    }
  }
}

void Engine::OnReceived(void*, ucs_status_t status, size_t bytes, void* op) {
  ReceiveOp* received = static_cast<ReceiveOp*>(op);
  // The sender's data and its announcement are apart on the wire and may disagree.
  if (status == UCS_OK && bytes != received->payload.size()) {
    status = UCS_ERR_MESSAGE_TRUNCATED;
  }
  received->connection->engine->events_.received.emplace_back(received, status);
}

void Engine::ActOnReceived() {
  std::vector<std::pair<ReceiveOp*, ucs_status_t>> received;
  received.swap(events_.received);
  for (const auto& [op, status] : received) {
    Connection& connection = *op->connection;
    const FrameHeader header = op->header;
    std::vector<uint8_t> payload = std::move(op->payload);
    connection.receiving_bytes -= payload.size();
    if (op->request != nullptr) ucp_request_free(op->request);
    connection.receives.erase(op->self);
    if (connection.state == State::kClosing) continue;
    if (status != UCS_OK) {
      BeginClose(connection, StatusFromUcs(status, absl::StrCat("lost ", connection.address)));
      continue;
    }
    Deliver(connection, header, std::move(payload));
    StartReceives(connection);
  }
}

void Engine::Deliver(Connection& connection, const FrameHeader& header,
                     std::vector<uint8_t> payload) {
  if (connection.state == State::kClosing) return;
  connection.heard = true;
  OpenIfReady(connection);
  // Data only comes from a peer that has heard us, so we have had our wires since.
  if (connection.state != State::kOpen) return;
  if (header.kind == static_cast<uint32_t>(FrameKind::kOpen)) return;
  ++counters_.frames_received;
  counters_.bytes_received += payload.size();
  if (handler_.on_frame) handler_.on_frame(connection.id, {header.type, std::move(payload)});
}

}  // namespace specfabric::transport
