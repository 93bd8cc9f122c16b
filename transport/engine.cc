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
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/cpu_relax.h"
#include "base/status.h"
#include "spdlog/spdlog.h"
#include "transport/gpu.h"
#include "transport/memory.h"

namespace specfabric::transport {
namespace {

constexpr base::Nanos kShutdownLimit = 3 * base::kSecond;
// Likewise before UCX is started anew: the other peers wait.
constexpr base::Nanos kRestartLimit = 500 * base::kMillisecond;
// How long shared memory may take to give back a closed connection's buffers.
constexpr base::Nanos kReleaseLimit = 2 * base::kSecond;
// A longer time between two turns is not counted: somebody else had the processor.
constexpr base::Nanos kMaxTurnTime = 50 * base::kMillisecond;
// How often the sockets are looked at while UCX keeps the thread from sleeping.
constexpr base::Nanos kPollInterval = 200 * base::kMicrosecond;
// Frames that arrived before their sender's control connection ended are still in UCX's queues.
constexpr int kProgressBeforeClose = 1000;
// A turn without news looks at clock and sockets only when these bits of its number are 0.
constexpr uint32_t kIdleTurns = 1023;

}  // namespace

Engine::Engine(const FabricOptions& options, const FabricHandler& handler, PeerTable& peers,
               Counters& counters)
    : options_(options),
      gpu_(options.gpu),
      handler_(handler),
      peers_(peers),
      counters_(counters),
      by_index_(PeerTable::kIndexes, nullptr) {
  if (options.faults.any()) faults_.emplace(options.faults);
}

Engine::~Engine() {
  // This may be another thread than the one that used it.
  UseThread().IgnoreError();
  withdrawn_.clear();
  delayed_.clear();
  // The worker goes before the buffers that it may still hold.
  if (!connections_.empty()) keep_context_ = true;
  worker_.reset();
  connections_.clear();
  idle_sends_.clear_and_dispose(std::default_delete<SendOp>());
  if (keep_context_) {
    (void)context_.release();
    return;
  }
  for (auto& [id, pool] : pools_) UnmapSlab(context_.get(), pool->slab_);
  context_.reset();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const FabricOptions& options,
                                                       const FabricHandler& handler,
                                                       PeerTable& peers, Counters& counters) {
  std::unique_ptr<Engine> engine(new Engine(options, handler, peers, counters));
  const absl::Status status = engine->Start();
  if (!status.ok()) return status;
  return engine;
}

absl::Status Engine::UseThread() const { return gpu_ < 0 ? absl::OkStatus() : UseGpu(gpu_); }

absl::Status Engine::Start() {
  if (absl::Status used = UseThread(); !used.ok()) return used;
  ApplyUcxSettings(options_);
  may_ask_for_rendezvous_ = MayAskForRendezvous();
  may_share_memory_ = MayShareMemory(options_);
  auto context = CreateContext();
  if (!context.ok()) return context.status();
  context_ = *std::move(context);
  const absl::Status able = CheckRequirements(context_.get(), options_);
  if (!able.ok()) return able;
  const absl::Status registers = TryRegistering();
  if (!registers.ok()) return registers;
  if (options_.require_gpudirect || gpu_ >= 0) {
    spdlog::info("transport: GPU memory by RDMA: {}", FindGpuDirect().description);
  }
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  const absl::Status watched = Watch(wake_.get(), kWakeEvents, EPOLLIN);
  return watched.ok() ? StartWorker() : watched;
}

// Where memory may not be registered (RLIMIT_MEMLOCK), better now than at the first tensor.
absl::Status Engine::TryRegistering() {
  SlotPoolOptions trial;
  trial.kind = options_.require_gpudirect ? MemoryKind::kCuda : MemoryKind::kHost;
  trial.slot_bytes = 1 << 20;
  trial.slots = 1;
  auto slab = MapSlab(context_.get(), trial, std::max(options_.gpu, 0));
  if (!slab.ok()) return slab.status();
  UnmapSlab(context_.get(), *slab);
  FreeSlab(*slab);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<SlotPool>> Engine::AddPool(uint8_t id,
                                                          const SlotPoolOptions& options) {
  if (pools_.contains(id)) {
    return absl::AlreadyExistsError(absl::StrCat("there is a pool ", id, " already"));
  }
  if (options.kind == MemoryKind::kCuda) gpu_ = std::max(gpu_, 0);
  auto slab = MapSlab(context_.get(), options, gpu_);
  if (!slab.ok()) return slab.status();
  std::lock_guard lock(shown_mutex_);
  return pools_.emplace(id, std::make_shared<SlotPool>(options, *slab, &FreeSlab)).first->second;
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
  if (now_ < next_poll_) return;
  next_poll_ = now_ + kPollInterval;
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

void Engine::RestartIfBlocked() {
  while (!probation_.empty() && (!suspect_ || probation_.front().first <= now_)) {
    const auto [until, peer] = probation_.front();
    probation_.pop_front();
    const Connection* connection = Find(peer);
    if (!suspect_ || connection == nullptr || connection->state != State::kOpening) continue;
    suspect_ = memory_answered_ < until - kProbation;
    if (suspect_) return Restart("a killed peer has blocked shared memory");
  }
  for (PeerId peer : closing_) {
    if (connections_.at(peer)->release_by <= awake_) {
      return Restart("shared memory keeps the buffers of a peer that is gone");
    }
  }
}

void Engine::Restart(const char* reason) {
  ForgetFlush();
  spdlog::warn("transport: {}: restarting UCX, {} peers close", reason,
               connections_.size() - closing_.size());
  ++counters_.restarts;
  CloseAll(absl::UnavailableError("transport restarted"), kRestartLimit);
  // Not before: closing a wire in shared memory raises suspicion, but of the worker that ends here.
  suspect_ = false;
  probation_.clear();
  withdrawn_.clear();
  for (const auto& [peer, connection] : connections_) {
    by_index_[PeerTable::IndexOf(peer)] = nullptr;
    peers_.Forget(peer);
  }
  if (!connections_.empty()) keep_context_ = true;
  worker_.reset();
  connections_.clear();
  closing_.clear();
  counters_.releasing.Set(0);
  events_ = Events();
  const absl::Status status = StartWorker();
  if (!status.ok()) {
    // Without a worker there is nothing this process could still do for anybody.
    spdlog::critical("transport: {}", base::Message(status));
    std::abort();
  }
}

void Engine::Fail(PeerId peer, const absl::Status& status) {
  events_.any = true;
  events_.failures.push_back({peer, status});
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
  // A flush that UCX has set aside for its next progress FORCE does not end: UCX 1.22 would go on
  // with it, on an endpoint that is gone. This takes it up, and what then still waits FORCE ends.
  if (connection.wiring_request != nullptr) ucp_worker_progress(worker_.get());
  const bool was_open = connection.state == State::kOpen;
  if (!status.ok() && connection.shares_memory) suspect_ = true;
  if (IsSharedMemory(connection.wire)) connection.release_by = awake_ + kReleaseLimit;
  connection.state = State::kClosing;
  closing_.push_back(connection.id);
  counters_.releasing.Set(closing_.size());
  connection.control.Close();
  peers_.Remove(connection.id);
  connection.unsent.clear();
  Withdraw(std::move(connection.offer));
  if (connection.wiring_request != nullptr) {
    ucp_request_cancel(worker_.get(), connection.wiring_request);
  }
  for (auto* waiting : {&connection.announced, &connection.announced_tensors}) {
    for (const Announced& announced : *waiting) {
      ucp_am_data_release(worker_.get(), announced.descriptor);
    }
    waiting->clear();
  }
  if (!connection.sends.empty() && !HasMatureProtocols()) keep_context_ = true;
  for (SendOp& op : connection.sends) {
    op.frame.lease.Mark(SlotState::kQuarantined);
    if (op.request != nullptr) ucp_request_cancel(worker_.get(), op.request);
  }
  for (ReceiveOp& op : connection.receives) {
    op.lease.Mark(SlotState::kQuarantined);
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

  if (was_open) {
    ++counters_.closed;
    std::lock_guard lock(shown_mutex_);
    open_.erase(connection.id);
  }
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
    by_index_[PeerTable::IndexOf(peer)] = nullptr;
    peers_.Forget(peer);
    connections_.erase(entry);
    return true;
  };
  closing_.erase(std::remove_if(closing_.begin(), closing_.end(), done), closing_.end());
  counters_.releasing.Set(closing_.size());
}

std::string Engine::Transport(PeerId peer) const {
  const Connection* connection = Find(peer);
  if (connection == nullptr || connection->state != State::kOpen) return "";
  return connection->wire;
}

bool Engine::Turn(int polls) {
  bool progressed = false;
  for (int i = 0; i < polls && !progressed; ++i) {
    progressed = ucp_worker_progress(worker_.get()) != 0;
    if (!progressed) base::CpuRelax();
  }
  if (events_.any || (++turns_ & kIdleTurns) == 0) Act();
  return progressed;
}

void Engine::Act() {
  events_.any = false;
  const base::Nanos before = std::exchange(now_, base::Now());
  awake_ += std::min(now_ - before, kMaxTurnTime);
  if (now_ >= accept_again_) ResumeAccepting();
  PollSockets();
  ActOnRequests();
  ActOnWired();
  ActOnFrames();
  ActOnAnnounced();
  ActOnReceived();
  ActOnSent();
  ActOnFailures();
  if (!delayed_.empty()) SendDelayed(now_);
  CloseLateOpeners();
  CheckPeerLiveness();
  if (!withdrawn_.empty()) RetireOffers(now_, /*all=*/false);
  RetireClosed();
  RestartIfBlocked();
}

void Engine::Sleep(base::Nanos longest) {
  // What Act itself has brought about, it has not acted on yet.
  if (events_.any) return;
  // Busy: events came in since the last progress.
  if (ucp_worker_arm(worker_.get()) != UCS_OK) return;
  longest = std::clamp<base::Nanos>(NextDeadline() - base::Now(), 0, longest);
  pollfd events = {epoll_.get(), POLLIN, 0};
  const timespec limit = {static_cast<time_t>(longest / base::kSecond),
                          static_cast<long>(longest % base::kSecond)};
  ppoll(&events, 1, &limit, nullptr);
  next_poll_ = 0;
  turns_ = kIdleTurns;  // the next turn acts
  ++counters_.wakeups;
}

base::Nanos Engine::NextDeadline() const {
  base::Nanos next = std::min(next_liveness_check_, accept_again_);
  for (const auto* deadlines : {&opening_, &probation_}) {
    if (!deadlines->empty()) next = std::min(next, deadlines->front().first);
  }
  if (!delayed_.empty()) next = std::min(next, delayed_.begin()->first);
  return next;
}

void Engine::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void Engine::CloseAll(const absl::Status& status, base::Nanos timeout) {
  std::vector<PeerId> peers;
  for (const auto& [peer, connection] : connections_) peers.push_back(peer);
  std::sort(peers.begin(), peers.end());
  for (PeerId peer : peers) BeginClose(*Find(peer), status);
  const base::Nanos limit = base::Now() + timeout;
  while ((!connections_.empty() || !withdrawn_.empty()) && base::Now() < limit) {
    events_.any = false;  // what matters here is acted on below; the rest must not keep us awake
    if (ucp_worker_progress(worker_.get()) == 0) Sleep(base::kMillisecond);
    now_ = base::Now();
    RetireOffers(now_, /*all=*/true);
    ActOnWired();
    ActOnReceived();
    ActOnSent();
    RetireClosed();
  }
  if (!connections_.empty()) {
    spdlog::warn("transport: {} connections did not close within {} ms", connections_.size(),
                 timeout / base::kMillisecond);
  }
}

bool Engine::Flushed() {
  if (flush_ == nullptr) {
    const ucp_request_param_t params = {};
    const ucs_status_ptr_t result = ucp_worker_flush_nbx(worker_.get(), &params);
    if (!UCS_PTR_IS_PTR(result)) return true;  // done, or an endpoint has failed: seen elsewhere
    flush_ = result;
  }
  if (ucp_request_check_status(flush_) == UCS_INPROGRESS) return false;
  ForgetFlush();
  return true;
}

// UCX frees it once it is done, if it is not yet.
void Engine::ForgetFlush() {
  if (flush_ != nullptr) ucp_request_free(std::exchange(flush_, nullptr));
}

void Engine::Shutdown() {
  listener_.Close();
  ForgetFlush();
  CloseAll(absl::OkStatus(), kShutdownLimit);
}

void Engine::OnEndpointError(void* connection, ucp_ep_h, ucs_status_t status) {
  const Connection& broken = *static_cast<Connection*>(connection);
  broken.engine->Fail(broken.id, StatusFromUcs(status, absl::StrCat("lost ", broken.address)));
}

void Engine::OnEndpointClosed(void* request, ucs_status_t, void* connection) {
  static_cast<Connection*>(connection)->endpoint_closed = true;
  ucp_request_free(request);
}

}  // namespace specfabric::transport
