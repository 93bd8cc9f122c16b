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
constexpr base::Nanos kLongestLook = base::kSecond;
constexpr base::Nanos kShortestLook = base::kMillisecond;

base::Nanos LookInterval(const FabricOptions& options) {
  base::Nanos interval = kLongestLook;
  for (base::Nanos timeout : {options.silence_timeout, options.receive_timeout}) {
    if (timeout > 0) interval = std::min(interval, timeout / 10);
  }
  return std::max(interval, kShortestLook);
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

void Engine::LookAfterPeers() {
  if (now_ < next_look_) return;
  const base::Nanos interval = LookInterval(options_);
  // This process may have been stopped: what its peers sent meanwhile has not been read yet.
  const bool overslept = next_look_ != 0 && now_ - next_look_ > 3 * interval;
  next_look_ = now_ + interval;
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

void Engine::CountWire(const std::string& wire, int64_t change) {
  std::lock_guard lock(wires_mutex_);
  wires_[wire] += change;
}

std::map<std::string, int64_t> Engine::Wires() const {
  std::lock_guard lock(wires_mutex_);
  return wires_;
}

}  // namespace specfabric::transport
