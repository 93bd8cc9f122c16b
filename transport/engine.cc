#include "transport/engine.h"

#include <algorithm>
#include <cstdlib>

#include "base/cpu_relax.h"
#include "base/status.h"
#include "spdlog/spdlog.h"

namespace specfabric::transport {
namespace {

constexpr base::Nanos kShutdownLimit = 3 * base::kSecond;
// The same before the worker is replaced: the other peers wait.
constexpr base::Nanos kRestartLimit = 500 * base::kMillisecond;
// A longer time between two turns does not count: this thread was not running.
constexpr base::Nanos kMaxTurnTime = 50 * base::kMillisecond;
// Frames that arrived before their sender's control connection ended are still in UCX's queues.
constexpr int kProgressBeforeClose = 1000;
// A turn without events looks at clock and sockets only when these bits of its number are 0.
constexpr uint32_t kIdleTurns = 1023;

}  // namespace

Engine::Engine(const FabricOptions& options, const FabricHandler& handler, PeerTable& peers,
               Counters& counters)
    : state_{options, handler, peers, counters},
      runtime_(state_.options),
      listeners_(state_, runtime_),
      table_(state_, runtime_, listeners_, detector_),
      pools_(runtime_),
      sender_(state_, runtime_, table_),
      liveness_(state_, table_, sender_),
      connector_(state_, {runtime_, poller_, listeners_, detector_, table_, sender_, liveness_}),
      acceptor_(state_, poller_, connector_),
      receiver_(state_, {runtime_, detector_, table_, pools_, sender_, connector_}) {
  if (options.faults.any()) {
    faults_.emplace(state_, table_, sender_);
    sender_.set_hook(&*faults_);
  }
}

Engine::~Engine() {
  // This may be another thread than the one that used it.
  UseThread().IgnoreError();
  if (faults_) faults_->Clear();
  StopWorker();
  pools_.Unmap();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const FabricOptions& options,
                                                       const FabricHandler& handler,
                                                       PeerTable& peers, Counters& counters) {
  std::unique_ptr<Engine> engine(new Engine(options, handler, peers, counters));
  const absl::Status status = engine->Start();
  if (!status.ok()) return status;
  return engine;
}

absl::Status Engine::Start() {
  if (absl::Status started = runtime_.Start(); !started.ok()) return started;
  if (absl::Status started = poller_.Start(); !started.ok()) return started;
  return StartWorker();
}

absl::Status Engine::StartWorker() {
  if (absl::Status started = runtime_.StartWorker(); !started.ok()) return started;
  const absl::StatusOr<int> events = runtime_.EventDescriptor();
  if (!events.ok()) return events.status();
  const absl::Status watched = poller_.WatchUcx(*events);
  return watched.ok() ? receiver_.Register() : watched;
}

// The worker ends before the connections, whose buffers it may still use.
void Engine::StopWorker() {
  listeners_.Clear();
  if (!table_.empty()) runtime_.KeepContext();
  runtime_.StopWorker();
  table_.Clear();
  connector_.Reset();
  sender_.Reset();
  receiver_.Reset();
  state_.has_events = false;
}

bool Engine::Turn(int polls) {
  bool progressed = false;
  for (int i = 0; i < polls && !progressed; ++i) {
    progressed = runtime_.Progress();
    if (!progressed) base::CpuRelax();
  }
  if (state_.has_events || (++turns_ & kIdleTurns) == 0) HandleEvents();
  return progressed;
}

void Engine::HandleEvents() {
  state_.has_events = false;
  const base::Nanos before = std::exchange(state_.now, base::Now());
  state_.running_time += std::min(state_.now - before, kMaxTurnTime);
  acceptor_.ResumeIfDue();
  poller_.Poll(
      state_.now, [this] { acceptor_.Accept(); },
      [this](PeerId peer) {
        if (Connection* connection = table_.Find(peer)) connector_.AdvanceControl(*connection);
      });
  connector_.HandleRequests();
  connector_.HandleWired();
  receiver_.HandleFrames();
  receiver_.HandleAnnounced();
  receiver_.HandleReceived();
  sender_.HandleCompletions();
  HandleFailures();
  if (faults_) faults_->SendDelayed(state_.now);
  liveness_.CloseLateOpeners();
  liveness_.CheckPeers();
  if (!listeners_.none_withdrawn()) listeners_.Retire(state_.now, /*worker_ends=*/false);
  table_.Retire();
  RestartIfBlocked();
}

void Engine::HandleFailures() {
  if (!table_.has_failures()) return;
  // What a peer sent before it closed or died is still delivered.
  for (int i = 0; i < kProgressBeforeClose && runtime_.Progress(); ++i) {
  }
  receiver_.HandleFrames();
  table_.CloseFailed();
}

void Engine::Close(PeerId peer) {
  if (Connection* connection = table_.Find(peer)) {
    table_.BeginClose(*connection, absl::OkStatus());
  }
}

void Engine::Sleep(base::Nanos longest) {
  // What HandleEvents itself has brought about is not handled yet.
  if (state_.has_events || !runtime_.Arm()) return;
  poller_.Sleep(std::clamp<base::Nanos>(NextDeadline() - base::Now(), 0, longest));
  turns_ = kIdleTurns;  // the next turn handles events
  ++state_.counters.wakeups;
}

base::Nanos Engine::NextDeadline() const {
  return std::min({liveness_.NextDeadline(), acceptor_.NextDeadline(), detector_.NextDeadline(),
                   faults_ ? faults_->NextDeadline() : base::kForever});
}

void Engine::RestartIfBlocked() {
  const auto is_opening = [this](PeerId peer) {
    const Connection* connection = table_.Find(peer);
    return connection != nullptr && connection->state == ConnectionState::kOpening;
  };
  if (detector_.Blocked(state_.now, is_opening)) {
    Restart("a killed peer has blocked shared memory");
  } else if (table_.ReleaseOverdue()) {
    Restart("shared memory keeps the buffers of a peer that is gone");
  }
}

void Engine::Restart(const char* reason) {
  runtime_.ForgetFlush();
  spdlog::warn("transport: {}: restarting UCX, {} peers close", reason,
               table_.size() - table_.closing());
  ++state_.counters.restarts;
  CloseAll(absl::UnavailableError("transport restarted"), kRestartLimit);
  // Only now: closing connections in shared memory marks the old worker's queue as suspect again.
  detector_.Reset();
  StopWorker();
  const absl::Status status = StartWorker();
  if (!status.ok()) {
    // Without a worker the process cannot serve any peer.
    spdlog::critical("transport: {}", base::Message(status));
    std::abort();
  }
}

void Engine::CloseAll(const absl::Status& status, base::Nanos timeout) {
  table_.BeginCloseAll(status);
  const base::Nanos limit = base::Now() + timeout;
  while ((!table_.empty() || !listeners_.none_withdrawn()) && base::Now() < limit) {
    state_.has_events =
        false;  // all that matters now is handled below; the rest must not stop Sleep
    if (!runtime_.Progress()) Sleep(base::kMillisecond);
    state_.now = base::Now();
    listeners_.Retire(state_.now, /*worker_ends=*/true);
    connector_.HandleWired();
    receiver_.HandleReceived();
    sender_.HandleCompletions();
    table_.Retire();
  }
  if (!table_.empty()) {
    spdlog::warn("transport: {} connections did not close within {} ms", table_.size(),
                 timeout / base::kMillisecond);
  }
}

void Engine::Shutdown() {
  acceptor_.Close();
  runtime_.ForgetFlush();
  CloseAll(absl::OkStatus(), kShutdownLimit);
}

}  // namespace specfabric::transport
