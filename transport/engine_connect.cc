// Making connections: control connections, proofs of the join secret, UCX's listeners and
// endpoints.

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "spdlog/spdlog.h"
#include "transport/engine.h"

namespace specfabric::transport {
namespace {

// How long a UCX listener stays after its peer has connected.
constexpr base::Nanos kOfferLinger = 200 * base::kMillisecond;
// And if its peer was given up before it came: it may still be on its way, late because of a
// machine that has too much to do.
constexpr base::Nanos kUnusedOfferLinger = 10 * base::kSecond;
// How many accepted connections may be waited for at once that have not proven the join secret.
constexpr size_t kMaxUnauthenticated = 256;

}  // namespace

absl::StatusOr<std::string> Engine::Listen(ListenSocket socket) {
  if (listener_.listening()) return absl::FailedPreconditionError("listening already");
  const absl::Status watched = Watch(socket.fd(), kListenerEvents, EPOLLIN);
  if (!watched.ok()) return watched;
  socket.WidenQueue();
  listener_ = ControlListener(std::move(socket));
  return listener_.address();
}

void Engine::Connect(PeerId peer, const SocketAddress& address, const std::string& text) {
  auto control = ControlConnection::Connect(address);
  const absl::Status status = control.status();
  AddConnection(peer, control.ok() ? *std::move(control) : ControlConnection(), text, false);
  if (!status.ok()) Fail(peer, status);
}

Connection& Engine::AddConnection(PeerId peer, ControlConnection control, std::string address,
                                  bool inbound) {
  auto owned = std::make_unique<Connection>();
  Connection& connection = *owned;
  connection.id = peer;
  connection.engine = this;
  connection.address = std::move(address);
  connection.inbound = inbound;
  connection.control = std::move(control);
  connection.token =
      (RandomToken() & ~uint64_t{PeerTable::kIndexes - 1}) | PeerTable::IndexOf(peer);
  connections_.emplace(peer, std::move(owned));
  by_index_[PeerTable::IndexOf(peer)] = &connection;
  opening_.emplace_back(base::Now() + options_.connect_timeout, peer);
  if (connection.control.fd() >= 0) {
    using Side = ControlConnection::Side;
    connection.control.Begin(inbound ? Side::kServer : Side::kClient, connection.token,
                             options_.join_secret);
    const absl::Status watched =
        Watch(connection.control.fd(), peer, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    if (!watched.ok()) Fail(peer, watched);
  }
  return connection;
}

void Engine::AcceptConnections() {
  for (;;) {
    auto next = listener_.Accept();
    if (!next.ok()) return PauseAccepting(next.status());
    if (!next->has_value()) return;
    ControlListener::Accepted& accepted = **next;
    if (accepted.gone) {
      ++counters_.connect_failures;
      continue;
    }
    const PeerId peer = peers_.Name();
    if (peer == 0) continue;
    AddConnection(peer, std::move(accepted.connection), std::move(accepted.address), true);
    unauthenticated_.push_back(peer);
    if (unauthenticated_.size() <= kMaxUnauthenticated) continue;
    PruneUnauthenticated();
    // However many there are, a peer that proves the secret without delay is let in.
    if (unauthenticated_.size() > kMaxUnauthenticated) {
      BeginClose(*Find(unauthenticated_.front()),
                 absl::ResourceExhaustedError("others came before it had proven the join secret"));
      unauthenticated_.pop_front();
    }
  }
}

// What waits to be accepted would wake every sleep, without being accepted any sooner.
void Engine::PauseAccepting(const absl::Status& why) {
  accept_failures_.Report("transport", listener_.address(), base::Message(why), now_);
  WatchListener(0);
  accept_again_ = now_ + AcceptFailures::kPause;
}

void Engine::ResumeAccepting() {
  accept_again_ = base::kForever;
  WatchListener(EPOLLIN);
}

void Engine::WatchListener(uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = kListenerEvents;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.fd(), &event);
}

void Engine::PruneUnauthenticated() {
  std::erase_if(unauthenticated_, [this](PeerId peer) {
    const Connection* connection = Find(peer);
    return connection == nullptr || connection->state == State::kClosing ||
           connection->control.proven();
  });
}

// A peer that has proven the join secret takes one of max_peers places.
absl::Status Engine::Admit(Connection& connection) {
  PruneUnauthenticated();
  const size_t others = connections_.size() - unauthenticated_.size() - 1;
  if (others < static_cast<size_t>(std::max(options_.max_peers, 0))) return absl::OkStatus();
  connection.control.Refuse(Refusal::kFull);
  spdlog::warn("transport peer={} refused: {} peers already", connection.address, others);
  return absl::ResourceExhaustedError(
      absl::StrCat(connection.address, ": refused: ", others, " peers already"));
}

// What the refused are told, the refusing process logs: nobody else hears of them.
void Engine::FailControl(const Connection& connection, const absl::Status& status) {
  if (absl::IsUnauthenticated(status)) ++counters_.refused_secrets;
  if (connection.inbound &&
      (absl::IsUnauthenticated(status) || absl::IsFailedPrecondition(status))) {
    spdlog::warn("transport peer={} refused: {}", connection.address, base::Message(status));
  }
  Fail(connection.id,
       absl::Status(status.code(), absl::StrCat(connection.address, ": ", status.message())));
}

void Engine::AdvanceControl(Connection& connection) {
  while (connection.state != State::kClosing) {
    const auto introduction = connection.control.Advance();
    if (!introduction.ok()) return FailControl(connection, introduction.status());
    if (!introduction->has_value()) return;
    connection.peers_token = (*introduction)->token;
    if (connection.inbound) {
      absl::Status admitted = Admit(connection);
      if (admitted.ok()) admitted = OfferEndpoint(connection);
      if (!admitted.ok()) return Fail(connection.id, admitted);
    } else {
      const SocketAddress& peer = (*introduction)->endpoint;
      ucp_ep_params_t params = {};
      params.field_mask = UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_FLAGS;
      params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
      params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&peer.storage);
      params.sockaddr.addrlen = peer.size;
      OpenEndpoint(connection, params);
    }
  }
}

// Opens a UCX listener for this peer and tells it where.
absl::Status Engine::OfferEndpoint(Connection& connection) {
  auto offer = std::make_unique<Offer>();
  offer->engine = this;
  offer->peer = connection.id;
  const SocketAddress local = connection.control.LocalHost();
  ucp_listener_params_t params = {};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&local.storage);
  params.sockaddr.addrlen = local.size;
  params.conn_handler.cb = &Engine::OnConnectionRequest;
  params.conn_handler.arg = offer.get();
  ucp_listener_h listener = nullptr;
  ucp_listener_attr_t attributes = {};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  ucs_status_t status = ucp_listener_create(worker_.get(), &params, &listener);
  if (status == UCS_OK) {
    offer->listener.reset(listener);
    connection.offer = std::move(offer);
    status = ucp_listener_query(listener, &attributes);
  }
  if (status != UCS_OK) {
    return StatusFromUcs(status, absl::StrCat(connection.address, ": UCX cannot listen for it"));
  }
  connection.control.AnswerWith({attributes.sockaddr, local.size});
  return absl::OkStatus();
}

void Engine::ActOnRequests() {
  for (PeerId peer : std::exchange(events_.requested, {})) {
    Connection* connection = Find(peer);
    if (connection == nullptr || connection->offer == nullptr) continue;
    std::vector<ucp_conn_request_h>& requests = connection->offer->requests;
    if (requests.empty() || connection->endpoint != nullptr) continue;
    ucp_ep_params_t params = {};
    params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
    params.conn_request = requests.front();
    requests.erase(requests.begin());
    OpenEndpoint(*connection, params);
  }
}

// UCX does not survive a listener's end while somebody is connecting to it: its thread still calls
// the listener when the connection's first bytes come (1.13; openucx/ucx#11087 of 1.19). So it
// stays until its peer has come, or will not come any more: told by the end of the control
// connection, it gives up.
void Engine::Withdraw(std::unique_ptr<Offer> offer) {
  if (offer == nullptr) return;
  offer->withdrawn_at = base::Now();
  withdrawn_.push_back(std::move(offer));
}

void Engine::RetireOffers(base::Nanos now, bool all) {
  std::erase_if(withdrawn_, [&](const std::unique_ptr<Offer>& offer) {
    for (ucp_conn_request_h request : std::exchange(offer->requests, {})) {
      ucp_listener_reject(offer->listener.get(), request);
      offer->withdrawn_at = now;
    }
    const base::Nanos linger = offer->used || all ? kOfferLinger : kUnusedOfferLinger;
    return offer->withdrawn_at + linger <= now;
  });
}

// Sends given to UCX 1.13 before an endpoint has its wires fail an assertion with
// UCX_PROTO_ENABLE=y, so they wait for a flush, which ends once it has.
void Engine::OpenEndpoint(Connection& connection, ucp_ep_params_t& params) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &Engine::OnEndpointError;
  params.err_handler.arg = &connection;
  const ucs_status_t status = ucp_ep_create(worker_.get(), &params, &connection.endpoint);
  if (status != UCS_OK) {
    connection.endpoint = nullptr;
    Fail(connection.id,
         StatusFromUcs(status, absl::StrCat(connection.address, ": UCX cannot connect")));
    return;
  }
  connection.shares_memory = may_share_memory_;  // until the wire is known
  if (suspect_) PutOnProbation(connection);
  connection.wiring = true;
  ucp_request_param_t flush = {};
  flush.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  flush.cb.send = &Engine::OnWired;
  flush.user_data = &connection;
  const ucs_status_ptr_t result = ucp_ep_flush_nbx(connection.endpoint, &flush);
  if (UCS_PTR_IS_PTR(result)) {
    connection.wiring_request = result;
  } else {
    events_.any = true;
    events_.wired.emplace_back(&connection, UCS_PTR_STATUS(result));
  }
}

void Engine::ActOnWired() {
  for (const auto& [connection, status] : std::exchange(events_.wired, {})) {
    if (connection->wiring_request != nullptr) ucp_request_free(connection->wiring_request);
    connection->wiring_request = nullptr;
    connection->wiring = false;
    if (connection->state == State::kClosing) continue;
    if (status != UCS_OK) {
      BeginClose(*connection,
                 StatusFromUcs(status, absl::StrCat(connection->address, ": UCX cannot connect")));
      continue;
    }
    const absl::Status allowed = CheckWire(*connection);
    if (!allowed.ok()) {
      BeginClose(*connection, allowed);
      continue;
    }
    connection->wired = true;
    Withdraw(std::move(connection->offer));
    StartSend(*connection, {.kind = FrameKind::kOpen});
    OpenIfReady(*connection);
  }
}

absl::Status Engine::CheckWire(Connection& connection) {
  connection.wire = TransportOf(connection.endpoint);
  connection.shares_memory = IsSharedMemory(connection.wire);
  const bool required = options_.require_rdma || options_.require_gpudirect;
  if (!required || connection.shares_memory || IsRdma(connection.wire)) return absl::OkStatus();
  ++counters_.non_rdma_connections;
  spdlog::error("transport peer={} refused: the wire is {}, but RDMA is required",
                connection.address, connection.wire);
  return absl::FailedPreconditionError(absl::StrCat(connection.address, ": the wire is ",
                                                    connection.wire, ", but RDMA is required"));
}

void Engine::OpenIfReady(Connection& connection) {
  if (connection.state != State::kOpening || !connection.wired || !connection.heard) return;
  connection.state = State::kOpen;
  connection.last_heard = now_;
  // What it sent has come through whatever an earlier peer left in the queue.
  if (connection.shares_memory) suspect_ = false;
  for (Outgoing& frame : std::exchange(connection.unsent, {}))
    SendOrFault(connection, std::move(frame));
  ++counters_.opened;
  {
    std::lock_guard lock(shown_mutex_);
    open_.emplace(connection.id, &connection);
  }
  if (connection.inbound) peers_.Add(connection.id);
  if (handler_.on_open) handler_.on_open(connection.id, connection.address, connection.inbound);
}

void Engine::OnConnectionRequest(ucp_conn_request_h request, void* offer) {
  Offer* wanted = static_cast<Offer*>(offer);
  wanted->requests.push_back(request);
  wanted->used = true;
  wanted->engine->events_.any = true;
  wanted->engine->events_.requested.push_back(wanted->peer);
}

void Engine::OnWired(void*, ucs_status_t status, void* connection) {
  Connection* wired = static_cast<Connection*>(connection);
  wired->engine->events_.any = true;
  wired->engine->events_.wired.emplace_back(wired, status);
}

}  // namespace specfabric::transport
