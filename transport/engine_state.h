#ifndef SPECFABRIC_TRANSPORT_ENGINE_STATE_H_
#define SPECFABRIC_TRANSPORT_ENGINE_STATE_H_

// What every part of an engine uses. Private to transport/.

#include "base/clock.h"
#include "transport/counters.h"
#include "transport/fabric.h"
#include "transport/peer_table.h"

namespace specfabric::transport {

// The handler, the peer table and the counters are the caller's. The engine's thread alone reads
// and writes the rest.
struct EngineState {
  const FabricOptions options;
  const FabricHandler& handler;
  PeerTable& peers;
  Counters& counters;

  base::Nanos now = 0;  // when Engine::Turn last handled events
  // Time spent between turns, without the time in which this process did not run: a time limit for
  // UCX's own progress must not expire while the process was stopped.
  base::Nanos running_time = 0;
  // A callback of UCX, or a part, has recorded something that the next turn must handle.
  bool has_events = false;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_ENGINE_STATE_H_
