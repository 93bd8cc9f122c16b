#ifndef SPECFABRIC_TRANSPORT_ACCEPTOR_H_
#define SPECFABRIC_TRANSPORT_ACCEPTOR_H_

// The listening socket of an engine: accepts control connections and hands them to the connector.
// Private to transport/; on the engine's thread.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "transport/accept_failures.h"
#include "transport/connector.h"
#include "transport/control.h"
#include "transport/engine_state.h"
#include "transport/listen_socket.h"
#include "transport/poller.h"

namespace specfabric::transport {

class Acceptor {
 public:
  Acceptor(EngineState& state, Poller& poller, Connector& connector)
      : state_(state), poller_(poller), connector_(connector) {}

  // Once only. The address as bound.
  absl::StatusOr<std::string> Listen(ListenSocket socket);
  // The socket is ready.
  void Accept();
  // Ends a pause whose time has passed.
  void ResumeIfDue();
  void Close() { listener_.Close(); }
  base::Nanos NextDeadline() const { return resume_at_; }

 private:
  void Pause(const absl::Status& why);

  EngineState& state_;
  Poller& poller_;
  Connector& connector_;
  ControlListener listener_;
  AcceptFailures failures_;
  base::Nanos resume_at_ = base::kForever;  // accepting is paused until then
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_ACCEPTOR_H_
