#include "transport/connector.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "spdlog/spdlog.h"
#include "transport/ucx_context.h"

namespace specfabric::transport {
namespace {

// How many accepted connections may be waited for at once that have not proven the join secret.
constexpr size_t kMaxUnauthenticated = 256;

}  // namespace

void Connector::Connect(PeerId peer, const SocketAddress& address, const std::string& text) {
  auto control = ControlConnection::Connect(address);
  const absl::Status status = control.status();
  Add(peer, control.ok() ? *std::move(control) : ControlConnection(), text, /*inbound=*/false);
  if (!status.ok()) parts_.table.Fail(peer, status);
}

void Connector::Accept(PeerId peer, ControlListener::Accepted accepted) {
  Add(peer, std::move(accepted.connection), std::move(accepted.address), /*inbound=*/true);
  unauthenticated_.push_back(peer);
  LimitUnauthenticated();
}

Connection& Connector::Add(PeerId peer, ControlConnection control, std::string address,
                           bool inbound) {
  Connection& connection = parts_.table.Add(peer, std::move(address), inbound);
  connection.connector = this;
  connection.control = std::move(control);
  parts_.liveness.ExpectOpen(peer);
  if (connection.control.fd() >= 0) {
    using Side = ControlConnection::Side;
    connection.control.Begin(inbound ? Side::kServer : Side::kClient, connection.token,
                             state_.options.join_secret);
    const absl::Status watched = parts_.poller.WatchControl(connection.control.fd(), peer);
    if (!watched.ok()) parts_.table.Fail(peer, watched);
  }
  return connection;
}

void Connector::LimitUnauthenticated() {
  if (unauthenticated_.size() <= kMaxUnauthenticated) return;
  PruneUnauthenticated();
  if (unauthenticated_.size() <= kMaxUnauthenticated) return;
  // The oldest goes, so that a peer that proves the secret without delay is always let in.
  parts_.table.BeginClose(
      *parts_.table.Find(unauthenticated_.front()),
      absl::ResourceExhaustedError("others came before it had proven the join secret"));
  unauthenticated_.pop_front();
}

void Connector::PruneUnauthenticated() {
  std::erase_if(unauthenticated_, [this](PeerId peer) {
    const Connection* connection = parts_.table.Find(peer);
    return connection == nullptr || connection->state == ConnectionState::kClosing ||
           connection->control.proven();
  });
}

// A peer that has proven the join secret takes one of max_peers places.
absl::Status Connector::Admit(Connection& connection) {
  PruneUnauthenticated();
  const size_t others = parts_.table.size() - unauthenticated_.size() - 1;
  if (others < static_cast<size_t>(std::max(state_.options.max_peers, 0))) return absl::OkStatus();
  connection.control.Refuse(Refusal::kFull);
  spdlog::warn("transport peer={} refused: {} peers already", connection.address, others);
  return absl::ResourceExhaustedError(
      absl::StrCat(connection.address, ": refused: ", others, " peers already"));
}

// The refusing side logs it here, because no callback reports the peer.
void Connector::FailControl(const Connection& connection, const absl::Status& status) {
  if (absl::IsUnauthenticated(status)) ++state_.counters.refused_secrets;
  if (connection.inbound &&
      (absl::IsUnauthenticated(status) || absl::IsFailedPrecondition(status))) {
    spdlog::warn("transport peer={} refused: {}", connection.address, base::Message(status));
  }
  parts_.table.Fail(
      connection.id,
      absl::Status(status.code(), absl::StrCat(connection.address, ": ", status.message())));
}

void Connector::AdvanceControl(Connection& connection) {
  while (connection.state != ConnectionState::kClosing) {
    const auto introduction = connection.control.Advance();
    if (!introduction.ok()) return FailControl(connection, introduction.status());
    if (!introduction->has_value()) return;
    connection.peers_token = (*introduction)->token;
    if (connection.inbound) {
      absl::Status admitted = Admit(connection);
      if (admitted.ok()) admitted = OpenListener(connection);
      if (!admitted.ok()) return parts_.table.Fail(connection.id, admitted);
    } else {
      ConnectEndpoint(connection, (*introduction)->endpoint);
    }
  }
}

absl::Status Connector::OpenListener(Connection& connection) {
  auto listener =
      parts_.listeners.Open(connection.id, connection.control.LocalHost(), connection.address);
  if (!listener.ok()) return listener.status();
  connection.listener = *std::move(listener);
  connection.control.AnswerWith(connection.listener->address);
  return absl::OkStatus();
}

void Connector::ConnectEndpoint(Connection& connection, const SocketAddress& peer) {
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_FLAGS;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&peer.storage);
  params.sockaddr.addrlen = peer.size;
  OpenEndpoint(connection, params);
}

void Connector::HandleRequests() {
  for (PeerId peer : parts_.listeners.TakeRequested()) {
    Connection* connection = parts_.table.Find(peer);
    if (connection == nullptr || connection->listener == nullptr) continue;
    std::vector<ucp_conn_request_h>& requests = connection->listener->requests;
    if (requests.empty() || connection->endpoint != nullptr) continue;
    ucp_ep_params_t params = {};
    params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
    params.conn_request = requests.front();
    requests.erase(requests.begin());
    OpenEndpoint(*connection, params);
  }
}

// Sends given to UCX 1.13 before an endpoint has its wires fail an assertion with
// UCX_PROTO_ENABLE=y, so they wait for a flush, which ends once it has.
void Connector::OpenEndpoint(Connection& connection, ucp_ep_params_t& params) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &ConnectionTable::OnEndpointError;
  params.err_handler.arg = &connection;
  const ucs_status_t status = ucp_ep_create(parts_.runtime.worker(), &params, &connection.endpoint);
  if (status != UCS_OK) {
    connection.endpoint = nullptr;
    parts_.table.Fail(connection.id, StatusFromUcs(status, absl::StrCat(connection.address,
                                                                        ": UCX cannot connect")));
    return;
  }
  connection.shares_memory = parts_.runtime.may_share_memory();  // until the wire is known
  if (parts_.detector.suspect()) {
    const base::Nanos now = base::Now();
    parts_.detector.PutOnProbation(connection.id, now);
    // If the queue is blocked, no pong comes through it either.
    parts_.liveness.PingSharedMemoryPeers(now);
  }
  connection.wiring = true;
  ucp_request_param_t flush = {};
  flush.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  flush.cb.send = &Connector::OnWired;
  flush.user_data = &connection;
  const ucs_status_ptr_t result = ucp_ep_flush_nbx(connection.endpoint, &flush);
  if (UCS_PTR_IS_PTR(result)) {
    connection.wiring_request = result;
  } else {
    state_.has_events = true;
    wired_.emplace_back(&connection, UCS_PTR_STATUS(result));
  }
}

void Connector::HandleWired() {
  for (const auto& [connection, status] : std::exchange(wired_, {})) {
    if (connection->wiring_request != nullptr) ucp_request_free(connection->wiring_request);
    connection->wiring_request = nullptr;
    connection->wiring = false;
    if (connection->state == ConnectionState::kClosing) continue;
    if (status != UCS_OK) {
      parts_.table.BeginClose(
          *connection,
          StatusFromUcs(status, absl::StrCat(connection->address, ": UCX cannot connect")));
      continue;
    }
    const absl::Status allowed = CheckWire(*connection);
    if (!allowed.ok()) {
      parts_.table.BeginClose(*connection, allowed);
      continue;
    }
    connection->wired = true;
    parts_.listeners.Withdraw(std::move(connection->listener));
    parts_.sender.StartEmpty(*connection, FrameKind::kOpen);
    OpenIfReady(*connection);
  }
}

absl::Status Connector::CheckWire(Connection& connection) {
  connection.wire = TransportOf(connection.endpoint);
  connection.shares_memory = IsSharedMemory(connection.wire);
  const bool required = state_.options.require_rdma || state_.options.require_gpudirect;
  if (!required || connection.shares_memory || IsRdma(connection.wire)) return absl::OkStatus();
  ++state_.counters.non_rdma_connections;
  spdlog::error("transport peer={} refused: the wire is {}, but RDMA is required",
                connection.address, connection.wire);
  return absl::FailedPreconditionError(absl::StrCat(connection.address, ": the wire is ",
                                                    connection.wire, ", but RDMA is required"));
}

void Connector::OpenIfReady(Connection& connection) {
  if (connection.state != ConnectionState::kOpening || !connection.wired || !connection.heard) {
    return;
  }
  parts_.table.SetOpen(connection);
  connection.last_heard = state_.now;
  // Its first frame has passed whatever an earlier peer left in the queue.
  if (connection.shares_memory) parts_.detector.Clear();
  parts_.sender.SendUnsent(connection);
  if (connection.inbound) state_.peers.Add(connection.id);
  if (state_.handler.on_open) {
    state_.handler.on_open(connection.id, connection.address, connection.inbound);
  }
}

void Connector::OnWired(void*, ucs_status_t status, void* connection) {
  Connection* const wired = static_cast<Connection*>(connection);
  wired->connector->state_.has_events = true;
  wired->connector->wired_.emplace_back(wired, status);
}

}  // namespace specfabric::transport
