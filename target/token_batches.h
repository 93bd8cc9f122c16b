#ifndef SPECFABRIC_TARGET_TOKEN_BATCHES_H_
#define SPECFABRIC_TARGET_TOKEN_BATCHES_H_

// What a step has for its gateways: one message a gateway, however many sequences it has.

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
  // A batch ends before it would be larger than `max_bytes` (of content, about what the message
  // takes) or schemas::kMaxBatchSequences. An entry that is larger alone goes alone.
  explicit TokenBatches(size_t max_bytes = 1 << 20) : max_bytes_(max_bytes) {}

  void Add(link::PeerId peer, schemas::Tokens tokens);
  // Sends everything, each peer's in the order it was added, and forgets it. After an error nothing
  // more goes to that peer this time; it is logged.
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
