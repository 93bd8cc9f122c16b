#include "transport/liveness.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "transport/slot_access.h"

namespace specfabric::transport {
namespace {

// Pings to a quiet peer within one silence_timeout.
constexpr int kPingsPerTimeout = 5;
// Limits of the time between two checks, which otherwise is a tenth of the shortest time limit.
constexpr base::Nanos kMaxCheckInterval = base::kSecond;
constexpr base::Nanos kMinCheckInterval = base::kMillisecond;

base::Nanos CheckInterval(const FabricOptions& options) {
  base::Nanos interval = kMaxCheckInterval;
  for (base::Nanos timeout : {options.silence_timeout, options.receive_timeout}) {
    if (timeout > 0) interval = std::min(interval, timeout / 10);
  }
  return std::max(interval, kMinCheckInterval);
}

}  // namespace

void Liveness::ExpectOpen(PeerId peer) {
  opening_.emplace_back(base::Now() + state_.options.connect_timeout, peer);
}

void Liveness::CloseLateOpeners() {
  while (!opening_.empty() && opening_.front().first <= state_.now) {
    Connection* connection = table_.Find(opening_.front().second);
    opening_.pop_front();
    if (connection == nullptr || connection->state != ConnectionState::kOpening) continue;
    table_.BeginClose(
        *connection, absl::DeadlineExceededError(
                         absl::StrCat(connection->address, ": no connection within ",
                                      state_.options.connect_timeout / base::kMillisecond, " ms")));
  }
}

void Liveness::CheckPeers() {
  const base::Nanos now = state_.now;
  if (now < next_check_) return;
  const base::Nanos interval = CheckInterval(state_.options);
  // This process may have been stopped: what its peers sent meanwhile has not been read yet.
  const bool overslept = next_check_ != 0 && now - next_check_ > 3 * interval;
  next_check_ = now + interval;
  const base::Nanos timeout = state_.options.silence_timeout;
  std::vector<Connection*> silent;
  table_.ForEach([&](Connection& connection) {
    if (connection.state != ConnectionState::kOpen) return;
    if (overslept) connection.last_heard = now;
    GiveUpLateTensors(connection);
    if (timeout == 0) return;
    if (now - connection.last_heard >= timeout) {
      silent.push_back(&connection);
    } else {
      PingIfQuiet(connection);
    }
  });
  for (Connection* connection : silent) {
    ++state_.counters.silent_peers;
    table_.BeginClose(
        *connection, absl::DeadlineExceededError(
                         absl::StrCat(connection->address, ": silent for ",
                                      (now - connection->last_heard) / base::kMillisecond, " ms")));
  }
}

void Liveness::PingIfQuiet(Connection& connection) {
  const base::Nanos now = state_.now;
  const base::Nanos ping_after = state_.options.silence_timeout / kPingsPerTimeout;
  if (now - connection.last_heard < ping_after || now - connection.last_ping < ping_after) return;
  connection.last_ping = now;
  sender_.StartEmpty(connection, FrameKind::kPing);
}

void Liveness::PingSharedMemoryPeers(base::Nanos now) {
  table_.ForEach([&](Connection& connection) {
    if (connection.state != ConnectionState::kOpen || !connection.shares_memory) return;
    connection.last_ping = now;
    sender_.StartEmpty(connection, FrameKind::kPing);
  });
}

// The slot stays quarantined until UCX calls back: it may still write to it.
void Liveness::GiveUpLateTensors(Connection& connection) {
  const base::Nanos timeout = state_.options.receive_timeout;
  if (timeout == 0) return;
  for (ReceiveOp& op : connection.receives) {
    if (!op.lease || op.given_up || op.give_up_at > state_.now) continue;
    op.given_up = true;
    SlotAccess::Mark(op.lease, SlotState::kQuarantined);
    ++state_.counters.late_tensors;
    if (state_.handler.on_refused) {
      state_.handler.on_refused(connection.id, FieldsOf(op.header),
                                absl::DeadlineExceededError(absl::StrCat(
                                    "tensor under way for ", timeout / base::kMillisecond, " ms")));
    }
  }
}

base::Nanos Liveness::NextDeadline() const {
  return opening_.empty() ? next_check_ : std::min(next_check_, opening_.front().first);
}

}  // namespace specfabric::transport
