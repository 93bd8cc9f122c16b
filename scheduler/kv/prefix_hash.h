#ifndef SPECFABRIC_SCHEDULER_KV_PREFIX_HASH_H_
#define SPECFABRIC_SCHEDULER_KV_PREFIX_HASH_H_

// Keys of full KV blocks: a 128-bit hash, with a secret, of the block's tokens and of all tokens
// before them. The secret keeps a client from preparing prompts that collide. XXH3 is no message
// authentication code, and correctness does not depend on it: KvBlocks compares the tokens.

#include <array>
#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "base/types.h"

namespace specfabric::scheduler {

struct BlockKey {
  uint64_t low = 0, high = 0;
  bool operator==(const BlockKey&) const = default;
};

class PrefixHasher {
 public:
  // seed: the secret is derived from it, so that tests can repeat a run; without one it is random.
  // No plan depends on it unless two 128-bit keys collide. bits: kept of a key; below 128 only in
  // tests that need collisions.
  explicit PrefixHasher(std::optional<uint64_t> seed, int32_t bits = 128);

  // The parent of a sequence's first block. Sequences of different salts share nothing.
  BlockKey Root(uint64_t model_salt, uint64_t cache_salt) const;
  BlockKey Extend(const BlockKey& parent, absl::Span<const base::TokenId> tokens) const;

 private:
  BlockKey Hash(const BlockKey& parent, const void* data, size_t bytes) const;

  std::array<uint64_t, 24> secret_;
  BlockKey mask_;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_KV_PREFIX_HASH_H_
