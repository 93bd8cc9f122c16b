#ifndef SPECFABRIC_TARGET_STATE_OUTBOX_H_
#define SPECFABRIC_TARGET_STATE_OUTBOX_H_

// The way of hidden states over a link.

#include <functional>

#include "link/link.h"
#include "target/state_stream.h"

namespace specfabric::target {

// `link` is called when states are sent, on the leader thread.
StateOutbox MakeStateOutbox(const std::function<link::Link*()>& link);

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_STATE_OUTBOX_H_
