// The engine's life: starting, turning, sleeping, time-outs, closing.

#include "transport/engine.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "spdlog/spdlog.h"

namespace specfabric::transport {
namespace {

constexpr base::Nanos kShutdownLimit = 3 * base::kSecond;
// How often the sockets are looked at while UCX keeps the thread from sleeping.
constexpr base::Nanos kPollInterval = 200 * base::kMicrosecond;
// Frames that arrived before their sender's control connection ended are still in UCX's queues.
constexpr int kProgressBeforeClose = 1000;

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
  stats.restarts = restarts;
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
  withdrawn_.clear();
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
  ApplyUcxSettings(options_);
  auto context = CreateContext();
  if (!context.ok()) return context.status();
  context_ = *std::move(context);
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  const absl::Status watched = Watch(wake_.get(), kWakeEvents, EPOLLIN);
  return watched.ok() ? StartWorker() : watched;
}

absl::Status Engine::StartWorker() {
  auto worker = CreateWorker(context_.get());
  if (!worker.ok()) return worker.status();
  worker_ = *std::move(worker);
  int ucx_events = -1;
  const ucs_status_t status = ucp_worker_get_efd(worker_.get(), &ucx_events);
  if (status != UCS_OK) {
    return absl::UnavailableError(
        absl::StrCat("UCX has no event descriptor: ", ucs_status_string(status)));
  }
  // Closing the descriptor, as the worker's end does, takes it out again.
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

void Engine::PollSockets() {
  const base::Nanos now = base::Now();
  if (now < next_poll_) return;
  next_poll_ = now + kPollInterval;
  epoll_event ready[64];
  const int count = epoll_wait(epoll_.get(), ready, std::size(ready), 0);
  for (int i = 0; i < count; ++i) {
    if (ready[i].data.u64 == kListenerEvents) {
      AcceptConnections();
    } else if (ready[i].data.u64 == kWakeEvents) {
      uint64_t wakes;
      (void)!read(wake_.get(), &wakes, sizeof(wakes));
    } else if (Connection* connection = Find(ready[i].data.u64)) {
      AdvanceControl(*connection);
    }
  }
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

void Engine::RestartIfBlocked() {
  const base::Nanos now = probation_.empty() ? 0 : base::Now();
  while (!probation_.empty() && (!suspect_ || probation_.front().first <= now)) {
    const Connection* connection = Find(probation_.front().second);
    probation_.pop_front();
    if (suspect_ && connection != nullptr && connection->state == State::kOpening) {
      return Restart();
    }
  }
}

void Engine::Restart() {
  spdlog::warn("transport: a killed peer has blocked shared memory: restarting UCX, {} peers close",
               connections_.size());
  ++counters_.restarts;
  suspect_ = false;
  probation_.clear();
  CloseAll(absl::UnavailableError("transport restarted"));
  withdrawn_.clear();
  worker_.reset();
  connections_.clear();
  closing_.clear();
  events_ = Events();
  const absl::Status status = StartWorker();
  if (!status.ok()) {
    // Without a worker there is nothing this process could still do for anybody.
    spdlog::critical("transport: {}", base::Message(status));
    std::abort();
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
  if (!status.ok() && connection.shares_memory) suspect_ = true;
  connection.state = State::kClosing;
  closing_.push_back(connection.id);
  counters_.releasing = closing_.size();
  connection.control.Close();
  by_token_.erase(connection.token);
  peers_.Remove(connection.id);
  connection.unsent.clear();
  Withdraw(std::move(connection.offer));
  if (connection.wiring_request != nullptr) {
    ucp_request_cancel(worker_.get(), connection.wiring_request);
  }
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
    if (!connection.endpoint_closed || connection.wiring || !connection.sends.empty() ||
        !connection.receives.empty()) {
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
  ActOnRequests();
  ActOnWired();
  ActOnFrames();
  ActOnAnnounced();
  ActOnReceived();
  ActOnSent();
  ActOnFailures();
  CloseLateOpeners();
  if (!withdrawn_.empty()) RetireOffers(base::Now());
  RetireClosed();
  RestartIfBlocked();
  return progressed;
}

void Engine::Sleep(base::Nanos longest) {
  // Busy: events came in since the last progress.
  if (ucp_worker_arm(worker_.get()) != UCS_OK) return;
  for (const auto* deadlines : {&opening_, &probation_}) {
    if (deadlines->empty()) continue;
    longest = std::clamp<base::Nanos>(deadlines->front().first - base::Now(), 0, longest);
  }
  pollfd events = {epoll_.get(), POLLIN, 0};
  const timespec limit = {static_cast<time_t>(longest / base::kSecond),
                          static_cast<long>(longest % base::kSecond)};
  ppoll(&events, 1, &limit, nullptr);
  next_poll_ = 0;
  ++counters_.wakeups;
}

void Engine::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void Engine::CloseAll(const absl::Status& status) {
  std::vector<PeerId> peers;
  for (const auto& [peer, connection] : connections_) peers.push_back(peer);
  std::sort(peers.begin(), peers.end());
  for (PeerId peer : peers) BeginClose(*Find(peer), status);
  const base::Nanos limit = base::Now() + kShutdownLimit;
  while ((!connections_.empty() || !withdrawn_.empty()) && base::Now() < limit) {
    if (ucp_worker_progress(worker_.get()) == 0) Sleep(base::kMillisecond);
    RetireOffers(base::Now());
    ActOnWired();
    ActOnReceived();
    ActOnSent();
    RetireClosed();
  }
  if (!connections_.empty()) {
    spdlog::warn("transport: {} connections did not close within {} s", connections_.size(),
                 kShutdownLimit / base::kSecond);
  }
}

void Engine::Shutdown() {
  listener_.Close();
  CloseAll(absl::OkStatus());
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
