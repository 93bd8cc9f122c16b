#ifndef SPECFABRIC_TARGET_STATE_OUTBOX_H_
#define SPECFABRIC_TARGET_STATE_OUTBOX_H_

// The way of hidden states over a link.

#include <functional>

#include "link/link.h"
#include "target/state_stream.h"

namespace specfabric::target {

// `link` is called when states are sent, on the leader thread. kind: of the slots they are sent
// from; those in GPU memory are in the host's if they cannot be had.
StateOutbox MakeStateOutbox(const std::function<link::Link*()>& link, transport::MemoryKind kind);

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_STATE_OUTBOX_H_
