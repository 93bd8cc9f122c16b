#include "transport/connection_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "transport/handshake.h"
#include "transport/slot_access.h"
#include "transport/ucx_context.h"

namespace specfabric::transport {
namespace {

// How long shared memory may take to release a closed connection's buffers.
constexpr base::Nanos kReleaseLimit = 2 * base::kSecond;

}  // namespace

ConnectionTable::ConnectionTable(EngineState& state, UcxRuntime& runtime, PeerListeners& listeners,
                                 BlockedQueueDetector& detector)
    : state_(state),
      runtime_(runtime),
      listeners_(listeners),
      detector_(detector),
      by_index_(PeerTable::kIndexes, nullptr) {}

Connection& ConnectionTable::Add(PeerId peer, std::string address, bool inbound) {
  auto owned = std::make_unique<Connection>();
  Connection& connection = *owned;
  connection.table = this;
  connection.id = peer;
  connection.address = std::move(address);
  connection.inbound = inbound;
  connection.token =
      (RandomToken() & ~uint64_t{PeerTable::kIndexes - 1}) | PeerTable::IndexOf(peer);
  connections_.emplace(peer, std::move(owned));
  by_index_[PeerTable::IndexOf(peer)] = &connection;
  return connection;
}

void ConnectionTable::SetOpen(Connection& connection) {
  connection.state = ConnectionState::kOpen;
  ++state_.counters.opened;
  std::lock_guard lock(open_mutex_);
  open_.emplace(connection.id, &connection);
}

void ConnectionTable::Fail(PeerId peer, const absl::Status& status) {
  state_.has_events = true;
  failures_.push_back({peer, status});
}

void ConnectionTable::CloseFailed() {
  for (const auto& [peer, status] : std::exchange(failures_, {})) {
    if (Connection* connection = Find(peer)) BeginClose(*connection, status);
  }
}

void ConnectionTable::BeginClose(Connection& connection, const absl::Status& status) {
  if (connection.state == ConnectionState::kClosing) return;
  // FORCE does not end a flush that UCX has queued for its next progress: UCX 1.22 would go on with
  // it, on an endpoint that is gone. Progress starts the flush, and FORCE ends what still waits.
  if (connection.wiring_request != nullptr) runtime_.Progress();
  const bool was_open = connection.state == ConnectionState::kOpen;
  if (!status.ok() && connection.shares_memory) detector_.Suspect();
  if (IsSharedMemory(connection.wire)) {
    connection.release_by = state_.running_time + kReleaseLimit;
  }
  connection.state = ConnectionState::kClosing;
  closing_.push_back(connection.id);
  state_.counters.releasing.Set(closing_.size());
  connection.control.Close();
  state_.peers.Remove(connection.id);
  connection.unsent.clear();
  listeners_.Withdraw(std::move(connection.listener));
  // UCX asks for these two in this order, without progress between them.
  CancelOperations(connection);
  CloseEndpoint(connection);
  ReportClosed(connection, was_open, status);
}

void ConnectionTable::CancelOperations(Connection& connection) {
  const ucp_worker_h worker = runtime_.worker();
  if (connection.wiring_request != nullptr) ucp_request_cancel(worker, connection.wiring_request);
  for (auto* waiting : {&connection.announced, &connection.announced_tensors}) {
    for (const Announced& announced : *waiting) ucp_am_data_release(worker, announced.descriptor);
    waiting->clear();
  }
  if (!connection.sends.empty() && !HasMatureProtocols()) runtime_.KeepContext();
  for (SendOp& op : connection.sends) {
    SlotAccess::Mark(op.frame.lease, SlotState::kQuarantined);
    if (op.request != nullptr) ucp_request_cancel(worker, op.request);
  }
  for (ReceiveOp& op : connection.receives) {
    SlotAccess::Mark(op.lease, SlotState::kQuarantined);
    if (op.request != nullptr) ucp_request_cancel(worker, op.request);
  }
}

void ConnectionTable::CloseEndpoint(Connection& connection) {
  if (connection.endpoint == nullptr) {
    connection.endpoint_closed = true;
    return;
  }
  ucp_request_param_t params = {};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  params.cb.send = &ConnectionTable::OnEndpointClosed;
  params.user_data = &connection;
  // A pointer is a request under way; anything else means that the endpoint is closed already.
  if (!UCS_PTR_IS_PTR(ucp_ep_close_nbx(connection.endpoint, &params))) {
    connection.endpoint_closed = true;
  }
}

void ConnectionTable::ReportClosed(Connection& connection, bool was_open,
                                   const absl::Status& status) {
  if (was_open) {
    ++state_.counters.closed;
    std::lock_guard lock(open_mutex_);
    open_.erase(connection.id);
  }
  if (!was_open && !status.ok()) ++state_.counters.connect_failures;
  const bool known_to_user = was_open || !connection.inbound;
  if (known_to_user && state_.handler.on_close) state_.handler.on_close(connection.id, status);
}

void ConnectionTable::BeginCloseAll(const absl::Status& status) {
  std::vector<PeerId> peers;
  for (const auto& [peer, connection] : connections_) peers.push_back(peer);
  std::sort(peers.begin(), peers.end());
  for (PeerId peer : peers) BeginClose(*Find(peer), status);
}

void ConnectionTable::Retire() {
  if (closing_.empty()) return;
  const auto done = [this](PeerId peer) {
    const auto entry = connections_.find(peer);
    const Connection& connection = *entry->second;
    if (!connection.endpoint_closed || connection.wiring || !connection.sends.empty() ||
        !connection.receives.empty()) {
      return false;
    }
    by_index_[PeerTable::IndexOf(peer)] = nullptr;
    state_.peers.Forget(peer);
    connections_.erase(entry);
    return true;
  };
  closing_.erase(std::remove_if(closing_.begin(), closing_.end(), done), closing_.end());
  state_.counters.releasing.Set(closing_.size());
}

bool ConnectionTable::ReleaseOverdue() const {
  return std::any_of(closing_.begin(), closing_.end(), [this](PeerId peer) {
    return connections_.at(peer)->release_by <= state_.running_time;
  });
}

void ConnectionTable::Clear() {
  for (const auto& [peer, connection] : connections_) {
    by_index_[PeerTable::IndexOf(peer)] = nullptr;
    state_.peers.Forget(peer);
  }
  connections_.clear();
  closing_.clear();
  failures_.clear();
  state_.counters.releasing.Set(0);
}

std::string ConnectionTable::Wire(PeerId peer) const {
  const Connection* connection = Find(peer);
  if (connection == nullptr || connection->state != ConnectionState::kOpen) return "";
  return connection->wire;
}

std::string ConnectionTable::PayloadWires(PeerId peer, MemoryKind kind) const {
  const Connection* connection = Find(peer);
  if (connection == nullptr || connection->state != ConnectionState::kOpen) return "";
  return connection->payload_wires[static_cast<size_t>(kind)];
}

std::vector<ConnectionStats> ConnectionTable::OpenConnections() const {
  std::vector<ConnectionStats> stats;
  std::lock_guard lock(open_mutex_);
  stats.reserve(open_.size());
  for (const auto& [peer, connection] : open_) {
    stats.push_back({.peer = peer,
                     .wire = connection->wire,
                     .bytes_sent = connection->bytes_sent.Read(),
                     .bytes_received = connection->bytes_received.Read()});
  }
  return stats;
}

void ConnectionTable::OnEndpointError(void* connection, ucp_ep_h, ucs_status_t status) {
  const Connection& broken = *static_cast<Connection*>(connection);
  broken.table->Fail(broken.id, StatusFromUcs(status, absl::StrCat("lost ", broken.address)));
}

void ConnectionTable::OnEndpointClosed(void* request, ucs_status_t, void* connection) {
  static_cast<Connection*>(connection)->endpoint_closed = true;
  ucp_request_free(request);
}

}  // namespace specfabric::transport
