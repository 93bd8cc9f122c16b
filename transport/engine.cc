// Connections: opening, accepting, time-outs, closing, sleeping.

#include "transport/engine.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

namespace specfabric::transport {
namespace {

constexpr base::Nanos kShutdownLimit = 3 * base::kSecond;
// How often the sockets are looked at while UCX keeps the thread from sleeping.
constexpr base::Nanos kPollInterval = 200 * base::kMicrosecond;
// Frames that arrived before their sender's control connection ended are still in UCX's queues.
constexpr int kProgressBeforeClose = 1000;

// What epoll reports beside connections, which are named by their PeerId.
constexpr uint64_t kUcxEvents = 0;
constexpr uint64_t kListenerEvents = UINT64_MAX;

}  // namespace

FabricStats Counters::Read() const {
  FabricStats stats;
  stats.frames_sent = frames_sent;
  stats.frames_received = frames_received;
  stats.bytes_sent = bytes_sent;
  stats.bytes_received = bytes_received;
  stats.opened = opened;
  stats.closed = closed;
  stats.refused_frames = refused_frames;
  stats.send_errors = send_errors;
  stats.connect_failures = connect_failures;
  stats.wakeups = wakeups;
  stats.unattributed_frames = unattributed_frames;
  stats.releasing = releasing;
  return stats;
}

Engine::Engine(const FabricOptions& options, const FabricHandler& handler, PeerTable& peers,
               Counters& counters, std::atomic<PeerId>& last_peer_id)
    : options_(options),
      handler_(handler),
      peers_(peers),
      counters_(counters),
      last_peer_id_(last_peer_id) {}

Engine::~Engine() {
  // The worker goes before the buffers of sends that it may still hold.
  worker_.reset();
  context_.reset();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const FabricOptions& options,
                                                       const FabricHandler& handler,
                                                       PeerTable& peers, Counters& counters,
                                                       std::atomic<PeerId>& last_peer_id) {
  std::unique_ptr<Engine> engine(new Engine(options, handler, peers, counters, last_peer_id));
  const absl::Status status = engine->Start();
  if (!status.ok()) return status;
  return engine;
}

absl::Status Engine::Start() {
  const ScopedUcxSettings settings(options_);
  auto context = CreateContext();
  if (!context.ok()) return context.status();
  context_ = *std::move(context);
  auto worker = CreateWorker(context_.get());
  if (!worker.ok()) return worker.status();
  worker_ = *std::move(worker);
  auto address = WorkerAddress(worker_.get());
  if (!address.ok()) return address.status();
  worker_address_ = *std::move(address);
  int ucx_events = -1;
  const ucs_status_t status = ucp_worker_get_efd(worker_.get(), &ucx_events);
  if (status != UCS_OK) {
    return absl::UnavailableError(
        absl::StrCat("UCX has no event descriptor: ", ucs_status_string(status)));
  }
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  const absl::Status watched = Watch(ucx_events, kUcxEvents, EPOLLIN);
  return watched.ok() ? AcceptFrames() : watched;
}

absl::Status Engine::Watch(int fd, uint64_t id, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot watch a socket: ", std::strerror(errno)));
}

absl::StatusOr<std::string> Engine::Listen(const SocketAddress& address, const std::string& text) {
  if (listener_.listening()) return absl::FailedPreconditionError("listening already");
  auto listener = ControlListener::Listen(address, text);
  if (!listener.ok()) return listener.status();
  const absl::Status watched = Watch(listener->fd(), kListenerEvents, EPOLLIN);
  if (!watched.ok()) return watched;
  listener_ = *std::move(listener);
  return listener_.address();
}

void Engine::Connect(PeerId peer, const SocketAddress& address, const std::string& text) {
  auto control = ControlConnection::Connect(address);
  const absl::Status status = control.status();
  Connection& connection =
      AddConnection(peer, control.ok() ? *std::move(control) : ControlConnection(), text, false);
  if (!status.ok()) return events_.failures.push_back({peer, status});
  connection.control.Introduce({connection.token, worker_address_});
}

Engine::Connection& Engine::AddConnection(PeerId peer, ControlConnection control,
                                          std::string address, bool inbound) {
  auto owned = std::make_unique<Connection>();
  Connection& connection = *owned;
  connection.id = peer;
  connection.engine = this;
  connection.address = std::move(address);
  connection.inbound = inbound;
  connection.control = std::move(control);
  connection.token = RandomToken();
  connections_.emplace(peer, std::move(owned));
  by_token_.emplace(connection.token, &connection);
  opening_.emplace_back(base::Now() + options_.connect_timeout, peer);
  if (connection.control.fd() >= 0) {
    const absl::Status watched =
        Watch(connection.control.fd(), peer, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    if (!watched.ok()) events_.failures.push_back({peer, watched});
  }
  return connection;
}

void Engine::PollSockets() {
  const base::Nanos now = base::Now();
  if (now < next_poll_) return;
  next_poll_ = now + kPollInterval;
  epoll_event ready[64];
  const int count = epoll_wait(epoll_.get(), ready, std::size(ready), 0);
  for (int i = 0; i < count; ++i) {
    if (ready[i].data.u64 == kListenerEvents) {
      AcceptConnections();
    } else if (Connection* connection = Find(ready[i].data.u64)) {
      AdvanceControl(*connection);
    }
  }
}

void Engine::AcceptConnections() {
  while (auto accepted = listener_.Accept()) {
    if (connections_.size() >= static_cast<size_t>(std::max(options_.max_peers, 0))) {
      spdlog::warn("transport peer={} rejected: {} peers already", accepted->address,
                   connections_.size());
      continue;
    }
    AddConnection(++last_peer_id_, std::move(accepted->connection), std::move(accepted->address),
                  true);
  }
}

void Engine::AdvanceControl(Connection& connection) {
  while (connection.state != State::kClosing) {
    const auto introduction = connection.control.Advance();
    if (!introduction.ok()) {
      events_.failures.push_back(
          {connection.id,
           absl::Status(introduction.status().code(),
                        absl::StrCat(connection.address, ": ", introduction.status().message()))});
      return;
    }
    if (!introduction->has_value()) return;
    OpenEndpoint(connection, **introduction);
    // Those who connect have introduced themselves first, so that strangers learn nothing.
    if (connection.inbound) connection.control.Introduce({connection.token, worker_address_});
  }
}

void Engine::OpenEndpoint(Connection& connection, const Introduction& peer) {
  connection.peers_token = peer.token;
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.worker_address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &Engine::OnEndpointError;
  params.err_handler.arg = &connection;
  const ucs_status_t status = ucp_ep_create(worker_.get(), &params, &connection.endpoint);
  if (status != UCS_OK) {
    connection.endpoint = nullptr;
    events_.failures.push_back(
        {connection.id,
         StatusFromUcs(status, absl::StrCat(connection.address, ": UCX finds no common wire"))});
    return;
  }
  StartSend(connection, FrameKind::kOpen, 0, {});
  for (Unsent& frame : std::exchange(connection.unsent, {})) {
    StartSend(connection, FrameKind::kData, frame.type, std::move(frame.payload));
  }
  if (connection.heard) Opened(connection);
}

void Engine::Opened(Connection& connection) {
  connection.state = State::kOpen;
  ++counters_.opened;
  if (connection.inbound) peers_.Add(connection.id);
  if (handler_.on_open) handler_.on_open(connection.id, connection.address, connection.inbound);
}

void Engine::CloseLateOpeners() {
  const base::Nanos now = opening_.empty() ? 0 : base::Now();
  while (!opening_.empty() && opening_.front().first <= now) {
    Connection* connection = Find(opening_.front().second);
    opening_.pop_front();
    if (connection == nullptr || connection->state != State::kOpening) continue;
    BeginClose(*connection, absl::DeadlineExceededError(absl::StrCat(
                                connection->address, ": no connection within ",
                                options_.connect_timeout / base::kMillisecond, " ms")));
  }
}

void Engine::ActOnFailures() {
  if (events_.failures.empty()) return;
  // What a peer sent before it closed or died is still delivered.
  for (int i = 0; i < kProgressBeforeClose && ucp_worker_progress(worker_.get()) != 0; ++i) {
  }
  ActOnFrames();
  for (const auto& [peer, status] : std::exchange(events_.failures, {})) {
    if (Connection* connection = Find(peer)) BeginClose(*connection, status);
  }
}

void Engine::Close(PeerId peer) {
  if (Connection* connection = Find(peer)) BeginClose(*connection, absl::OkStatus());
}

// Cancel, then close with FORCE, with no progress in between; the connection lives on, unseen,
// until UCX has handed back every buffer.
void Engine::BeginClose(Connection& connection, const absl::Status& status) {
  if (connection.state == State::kClosing) return;
  const bool was_open = connection.state == State::kOpen;
  connection.state = State::kClosing;
  closing_.push_back(connection.id);
  counters_.releasing = closing_.size();
  connection.control.Close();
  by_token_.erase(connection.token);
  peers_.Remove(connection.id);
  connection.unsent.clear();
  for (const Announced& announced : connection.announced) {
    ucp_am_data_release(worker_.get(), announced.descriptor);
  }
  connection.announced.clear();
  for (const SendOp& op : connection.sends) {
    if (op.request != nullptr) ucp_request_cancel(worker_.get(), op.request);
  }
  for (const ReceiveOp& op : connection.receives) {
    if (op.request != nullptr) ucp_request_cancel(worker_.get(), op.request);
  }
  if (connection.endpoint == nullptr) {
    connection.endpoint_closed = true;
  } else {
    ucp_request_param_t params = {};
    params.op_attr_mask =
        UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    params.cb.send = &Engine::OnEndpointClosed;
    params.user_data = &connection;
    // A pointer is a request under way; anything else means that UCX has let go already.
    if (!UCS_PTR_IS_PTR(ucp_ep_close_nbx(connection.endpoint, &params))) {
      connection.endpoint_closed = true;
    }
  }

  if (was_open) ++counters_.closed;
  if (!was_open && !status.ok()) ++counters_.connect_failures;
  const bool known_to_user = was_open || !connection.inbound;
  if (known_to_user && handler_.on_close) handler_.on_close(connection.id, status);
}

void Engine::RetireClosed() {
  if (closing_.empty()) return;
  const auto done = [this](PeerId peer) {
    const auto entry = connections_.find(peer);
    const Connection& connection = *entry->second;
    if (!connection.endpoint_closed || !connection.sends.empty() || !connection.receives.empty()) {
      return false;
    }
    connections_.erase(entry);
    return true;
  };
  closing_.erase(std::remove_if(closing_.begin(), closing_.end(), done), closing_.end());
  counters_.releasing = closing_.size();
}

Engine::Connection* Engine::Find(PeerId peer) const {
  const auto entry = connections_.find(peer);
  return entry == connections_.end() ? nullptr : entry->second.get();
}

std::string Engine::Transport(PeerId peer) const {
  const Connection* connection = Find(peer);
  if (connection == nullptr || connection->state != State::kOpen) return "";
  return TransportOf(connection->endpoint);
}

bool Engine::Turn() {
  const bool progressed = ucp_worker_progress(worker_.get()) != 0;
  PollSockets();
  ActOnFrames();
  ActOnAnnounced();
  ActOnReceived();
  ActOnSent();
  ActOnFailures();
  CloseLateOpeners();
  RetireClosed();
  return progressed;
}

void Engine::Sleep(base::Nanos longest) {
  // Busy: events came in since the last progress.
  if (ucp_worker_arm(worker_.get()) != UCS_OK) return;
  if (!opening_.empty()) {
    longest = std::clamp<base::Nanos>(opening_.front().first - base::Now(), 0, longest);
  }
  pollfd events = {epoll_.get(), POLLIN, 0};
  const timespec limit = {static_cast<time_t>(longest / base::kSecond),
                          static_cast<long>(longest % base::kSecond)};
  ppoll(&events, 1, &limit, nullptr);
  next_poll_ = 0;
  ++counters_.wakeups;
}

void Engine::Wake() { ucp_worker_signal(worker_.get()); }

void Engine::Shutdown() {
  listener_.Close();
  std::vector<PeerId> peers;
  for (const auto& [peer, connection] : connections_) peers.push_back(peer);
  std::sort(peers.begin(), peers.end());
  for (PeerId peer : peers) Close(peer);
  const base::Nanos limit = base::Now() + kShutdownLimit;
  while (!connections_.empty() && base::Now() < limit) {
    ucp_worker_progress(worker_.get());
    ActOnReceived();
    ActOnSent();
    RetireClosed();
  }
  if (!connections_.empty()) {
    spdlog::warn("transport: {} connections did not close within {} s", connections_.size(),
                 kShutdownLimit / base::kSecond);
  }
}

void Engine::OnEndpointError(void* connection, ucp_ep_h, ucs_status_t status) {
  const Connection& broken = *static_cast<Connection*>(connection);
  broken.engine->events_.failures.push_back(
      {broken.id, StatusFromUcs(status, absl::StrCat("lost ", broken.address))});
}

void Engine::OnEndpointClosed(void* request, ucs_status_t, void* connection) {
  static_cast<Connection*>(connection)->endpoint_closed = true;
  ucp_request_free(request);
}

}  // namespace specfabric::transport
