#include "target/accept_peer.h"

#include "absl/strings/str_cat.h"

namespace specfabric::target {

absl::Status AcceptStateReader(const schemas::Hello& theirs, int32_t last_boundary,
                               const absl::Status& able) {
  if (theirs.state_layers.empty()) return absl::OkStatus();
  if (!able.ok()) return able;
  for (const int32_t boundary : theirs.state_layers) {
    if (boundary <= last_boundary) continue;
    return absl::InvalidArgumentError(absl::StrCat("it reads hidden states at boundary ", boundary,
                                                   "; the target keeps boundaries 0 to ",
                                                   last_boundary));
  }
  return absl::OkStatus();
}

absl::Status AcceptPeer(const schemas::Hello& ours, const schemas::Hello& theirs) {
  if (theirs.role == schemas::Role::kTarget) {
    return absl::InvalidArgumentError("targets do not speak to targets");
  }
  if (theirs.role == schemas::Role::kRank) {
    return absl::InvalidArgumentError("rank processes join a target's --group_listen");
  }
  if (theirs.role == schemas::Role::kDraft) return schemas::CheckPair(ours, theirs);
  if (theirs.tokenizer_fingerprint != 0 && ours.tokenizer_fingerprint != 0 &&
      theirs.tokenizer_fingerprint != ours.tokenizer_fingerprint) {
    return absl::InvalidArgumentError("its tokenizer.json differs from the target's");
  }
  return absl::OkStatus();
}

}  // namespace specfabric::target
