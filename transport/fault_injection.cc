#include "transport/fault_injection.h"

#include <utility>

namespace specfabric::transport {

FaultInjection::FaultInjection(EngineState& state, ConnectionTable& table, Sender& sender)
    : state_(state), table_(table), sender_(sender), injector_(state.options.faults) {}

void FaultInjection::OnSend(Connection& connection, Outgoing frame) {
  const FaultDecision decision = injector_.Decide(frame.bytes);
  const base::Nanos now = base::Now();
  if (decision.faulty) ++state_.counters.faults;
  if (decision.copies == 0) return state_.peers.Release(connection.id, frame.bytes);
  const bool on_host = !frame.lease || frame.lease.pool()->options().kind == MemoryKind::kHost;
  if (decision.copies > 1 && on_host && state_.peers.Reserve(connection.id, frame.bytes).ok()) {
    Outgoing copy = {.kind = frame.kind, .type = frame.type, .fields = frame.fields};
    const uint8_t* bytes = static_cast<const uint8_t*>(frame.data);
    copy.payload.assign(bytes, bytes + frame.bytes);
    copy.data = copy.payload.data();
    copy.bytes = frame.bytes;
    delayed_.emplace(now + decision.copy_delay, Delayed{connection.id, std::move(copy)});
  }
  if (decision.corrupt && on_host) {
    const_cast<uint8_t*>(static_cast<const uint8_t*>(frame.data))[decision.corrupt_at] ^=
        decision.corrupt_with;
  }
  if (decision.delay == 0) return sender_.Start(connection, std::move(frame));
  delayed_.emplace(now + decision.delay, Delayed{connection.id, std::move(frame)});
}

void FaultInjection::SendDelayed(base::Nanos now) {
  while (!delayed_.empty() && delayed_.begin()->first <= now) {
    Delayed due = std::move(delayed_.extract(delayed_.begin()).mapped());
    Connection* connection = table_.Find(due.peer);
    if (connection == nullptr || connection->state != ConnectionState::kOpen) continue;
    sender_.Start(*connection, std::move(due.frame));
  }
}

base::Nanos FaultInjection::NextDeadline() const {
  return delayed_.empty() ? base::kForever : delayed_.begin()->first;
}

}  // namespace specfabric::transport
