#ifndef SPECFABRIC_TRANSPORT_LIVENESS_H_
#define SPECFABRIC_TRANSPORT_LIVENESS_H_

// Time limits of connections (FabricOptions): to open, to be heard of, to complete a tensor's
// receive. Sends the keep-alive pings. Private to transport/; on the engine's thread.

#include <deque>
#include <utility>

#include "base/clock.h"
#include "transport/connection_table.h"
#include "transport/engine_state.h"
#include "transport/sender.h"

namespace specfabric::transport {

class Liveness {
 public:
  Liveness(EngineState& state, ConnectionTable& table, Sender& sender)
      : state_(state), table_(table), sender_(sender) {}

  // The connection must be open within connect_timeout.
  void ExpectOpen(PeerId peer);
  void CloseLateOpeners();
  // Pings quiet peers, closes silent ones, gives up late tensors.
  void CheckPeers();
  // Asks every peer in shared memory for a pong.
  void PingSharedMemoryPeers(base::Nanos now);
  base::Nanos NextDeadline() const;

 private:
  void PingIfQuiet(Connection& connection);
  void GiveUpLateTensors(Connection& connection);

  EngineState& state_;
  ConnectionTable& table_;
  Sender& sender_;
  // In order, because every connection gets the same time; the connection may be gone already.
  std::deque<std::pair<base::Nanos, PeerId>> opening_;
  base::Nanos next_check_ = 0;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_LIVENESS_H_
