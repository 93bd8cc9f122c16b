// Deadlines: of connecting, of silence, of tensors under way.

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "transport/engine.h"

namespace specfabric::transport {
namespace {

// Signs of life asked for within one silence_timeout.
constexpr int kPingsPerTimeout = 5;
// How often peers are looked at, and no more often than ten times a deadline.
constexpr base::Nanos kMaxLivenessCheckInterval = base::kSecond;
constexpr base::Nanos kMinLivenessCheckInterval = base::kMillisecond;

base::Nanos LivenessCheckInterval(const FabricOptions& options) {
  base::Nanos interval = kMaxLivenessCheckInterval;
  for (base::Nanos timeout : {options.silence_timeout, options.receive_timeout}) {
    if (timeout > 0) interval = std::min(interval, timeout / 10);
  }
  return std::max(interval, kMinLivenessCheckInterval);
}

}  // namespace

void Engine::CloseLateOpeners() {
  while (!opening_.empty() && opening_.front().first <= now_) {
    Connection* connection = Find(opening_.front().second);
    opening_.pop_front();
    if (connection == nullptr || connection->state != State::kOpening) continue;
    BeginClose(*connection, absl::DeadlineExceededError(absl::StrCat(
                                connection->address, ": no connection within ",
                                options_.connect_timeout / base::kMillisecond, " ms")));
  }
}

void Engine::CheckPeerLiveness() {
  if (now_ < next_liveness_check_) return;
  const base::Nanos interval = LivenessCheckInterval(options_);
  // This process may have been stopped: what its peers sent meanwhile has not been read yet.
  const bool overslept = next_liveness_check_ != 0 && now_ - next_liveness_check_ > 3 * interval;
  next_liveness_check_ = now_ + interval;
  std::vector<PeerId> silent;
  for (const auto& [peer, connection] : connections_) {
    if (connection->state != State::kOpen) continue;
    if (overslept) connection->last_heard = now_;
    GiveUpLateTensors(*connection);
    if (options_.silence_timeout == 0) continue;
    const base::Nanos silence = now_ - connection->last_heard;
    const base::Nanos ping_after = options_.silence_timeout / kPingsPerTimeout;
    if (silence >= options_.silence_timeout) {
      silent.push_back(peer);
    } else if (silence >= ping_after && now_ - connection->last_ping >= ping_after) {
      connection->last_ping = now_;
      StartSend(*connection, {.kind = FrameKind::kPing});
    }
  }
  for (PeerId peer : silent) {
    ++counters_.silent_peers;
    Connection& connection = *Find(peer);
    BeginClose(connection, absl::DeadlineExceededError(absl::StrCat(
                               connection.address, ": silent for ",
                               (now_ - connection.last_heard) / base::kMillisecond, " ms")));
  }
}

// If the queue is blocked, nobody's pong comes through it either.
void Engine::PutOnProbation(const Connection& connection) {
  const base::Nanos now = base::Now();
  probation_.emplace_back(now + kProbation, connection.id);
  for (const auto& [peer, other] : connections_) {
    if (other->state != State::kOpen || !other->shares_memory) continue;
    other->last_ping = now;
    StartSend(*other, {.kind = FrameKind::kPing});
  }
}

// The slot stays quarantined until UCX calls back: it may still write to it.
void Engine::GiveUpLateTensors(Connection& connection) {
  if (options_.receive_timeout == 0) return;
  for (ReceiveOp& op : connection.receives) {
    if (!op.lease || op.given_up || op.give_up_at > now_) continue;
    op.given_up = true;
    op.lease.Mark(SlotState::kQuarantined);
    ++counters_.late_tensors;
    if (handler_.on_refused) {
      handler_.on_refused(
          connection.id, FieldsOf(op.header),
          absl::DeadlineExceededError(absl::StrCat(
              "tensor under way for ", options_.receive_timeout / base::kMillisecond, " ms")));
    }
  }
}

std::vector<ConnectionStats> Engine::OpenConnections() const {
  std::vector<ConnectionStats> stats;
  std::lock_guard lock(shown_mutex_);
  stats.reserve(open_.size());
  for (const auto& [peer, connection] : open_) {
    stats.push_back({.peer = peer,
                     .wire = connection->wire,
                     .bytes_sent = connection->bytes_sent.Read(),
                     .bytes_received = connection->bytes_received.Read()});
  }
  return stats;
}

std::vector<PoolStats> Engine::Pools() const {
  std::vector<PoolStats> stats;
  std::lock_guard lock(shown_mutex_);
  for (const auto& [id, pool] : pools_) {
    stats.push_back({.id = id,
                     .kind = pool->options().kind,
                     .bytes = pool->registered_bytes(),
                     .slots = pool->CountStates()});
  }
  return stats;
}

}  // namespace specfabric::transport
