#ifndef SPECFABRIC_TARGET_ACCEPT_PEER_H_
#define SPECFABRIC_TARGET_ACCEPT_PEER_H_

// Which peers a target lets in. Pure; InvalidArgument or Unimplemented in one line, which the peer
// is told.

#include <cstdint>

#include "absl/status/status.h"
#include "schemas/messages.h"

namespace specfabric::target {

// OK for gateways and tools with the same tokenizer, and for drafts with the same vocabulary.
absl::Status AcceptPeer(const schemas::Hello& ours, const schemas::Hello& theirs);

// Whether the target has the hidden states that a draft reads, if it reads any. `able`: why its
// model cannot keep states, if it cannot.
absl::Status AcceptStateReader(const schemas::Hello& theirs, int32_t last_boundary,
                               const absl::Status& able);

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_ACCEPT_PEER_H_
