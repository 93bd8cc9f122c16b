#ifndef SPECFABRIC_TRANSPORT_FAULT_INJECTION_H_
#define SPECFABRIC_TRANSPORT_FAULT_INJECTION_H_

// Fault injection, for tests: carries out FaultOptions on the frames of an engine. Private to
// transport/; on the engine's thread.

#include <map>

#include "base/clock.h"
#include "transport/connection_table.h"
#include "transport/engine_state.h"
#include "transport/faults.h"
#include "transport/sender.h"

namespace specfabric::transport {

class FaultInjection : public SendHook {
 public:
  FaultInjection(EngineState& state, ConnectionTable& table, Sender& sender);

  void OnSend(Connection& connection, Outgoing frame) override;
  // Sends the held back frames that are due.
  void SendDelayed(base::Nanos now);
  base::Nanos NextDeadline() const;
  void Clear() { delayed_.clear(); }

 private:
  struct Delayed {
    PeerId peer;
    Outgoing frame;
  };

  EngineState& state_;
  ConnectionTable& table_;
  Sender& sender_;
  FaultInjector injector_;
  std::multimap<base::Nanos, Delayed> delayed_;  // by when it is due
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_FAULT_INJECTION_H_
