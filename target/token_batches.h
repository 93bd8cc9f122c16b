#ifndef SPECFABRIC_TARGET_TOKEN_BATCHES_H_
#define SPECFABRIC_TARGET_TOKEN_BATCHES_H_

// Collects the new tokens of a step and sends one message to each gateway, for all its sequences.
// Owned by TargetEngine; leader thread only.

#include <cstddef>
#include <functional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "link/link.h"
#include "schemas/messages.h"

namespace specfabric::target {

using SendTokens = std::function<absl::Status(link::PeerId, const schemas::TokensBatch&)>;

class TokenBatches {
 public:
  // A gateway gets several messages if one would have more than schemas::kMaxBatchSequences
  // entries, or more than `max_bytes` of content (about the size of the message). A larger entry is
  // sent alone.
  explicit TokenBatches(size_t max_bytes = 1 << 20) : max_bytes_(max_bytes) {}

  void Add(link::PeerId peer, schemas::Tokens tokens);
  // Sends and removes all entries, those of each peer in the order in which they were added. After
  // an error, which is logged, the peer's other messages are dropped.
  void Send(const SendTokens& send);

 private:
  struct Batch {
    schemas::TokensBatch message;
    size_t bytes = 0;
  };
  const size_t max_bytes_;
  absl::flat_hash_map<link::PeerId, std::vector<Batch>> peers_;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_TOKEN_BATCHES_H_
