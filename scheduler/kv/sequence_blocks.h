#ifndef SPECFABRIC_SCHEDULER_KV_SEQUENCE_BLOCKS_H_
#define SPECFABRIC_SCHEDULER_KV_SEQUENCE_BLOCKS_H_

// The KV blocks of sequences: owns the pool, the hasher of the prefix cache's keys and the counts
// of cache hits. It grows a sequence's blocks, shares those that the cache has, and publishes those
// that are full. Called by Admission, StepPlanner and StepInFlight.
//
// A sequence's blocks are one table: first those that the cache knows (perhaps shared, full, never
// written again), then its own. Slots and block counts are in tokens and blocks, not bytes.

#include <cstdint>

#include "scheduler/kv/kv_blocks.h"
#include "scheduler/kv/prefix_hash.h"
#include "scheduler/sequence.h"

namespace specfabric::scheduler {

class SequenceBlocks {
 public:
  explicit SequenceBlocks(const SchedulerOptions& options);

  int32_t BlocksFor(int32_t slots) const { return (slots + block_size_ - 1) / block_size_; }
  // Slots that the sequence would have with every available block.
  int32_t SlotsWithin(const Sequence& sequence) const {
    return (static_cast<int32_t>(sequence.blocks.size()) + pool_.available()) * block_size_;
  }

  // Takes the blocks that are missing for `slots`; false, and none taken, if there are too few.
  bool Grow(int32_t slots, Sequence* sequence);
  // Gives back the blocks after the last slot that is written or that pending moves read.
  void Trim(Sequence* sequence);
  // Gives back all blocks; the sequence starts again with nothing written.
  void Drop(Sequence* sequence);

  // For a sequence about to prefill at the start of a block: replaces its next blocks by cached
  // ones with the same tokens, up to the block of its last token. Returns the tokens found.
  int32_t AdoptCached(Sequence* sequence);
  // Adds `found` tokens of AdoptCached to the sequence's and the cache's hits. Prefills after a
  // preemption do not count: they find what the sequence itself has written.
  void CountHits(int32_t found, Sequence* sequence);
  // The sequence, about to prefill for the first time, looks for all its tokens.
  void CountQuery(const Sequence& sequence);
  // Prefetches what the next Publish reads, if there is a block to publish: the data is spread over
  // as much memory as the pool has.
  void Prefetch(Sequence* sequence);
  // Publishes the blocks that are full and settled. Where the cache has another block of the same
  // content, that one takes the place of the sequence's.
  void Publish(Sequence* sequence);
  // As Drop, for a sequence whose KV may hold values that are not finite: blocks without another
  // owner are no longer found in the cache.
  void Forget(Sequence* sequence);

  // The key of a full block of committed tokens.
  const BlockKey& Key(int32_t block, Sequence* sequence);

  const KvBlocks& pool() const { return pool_; }
  // Tokens looked for in the prefix cache, once a sequence, and those found.
  uint64_t cache_queries() const { return cache_queries_; }
  uint64_t cache_hits() const { return cache_hits_; }

 private:
  // Whether a block is full and settled that the cache does not know.
  bool Publishes(const Sequence& sequence) const;
  KvBlocks::Content ContentOf(int32_t block, Sequence* sequence);

  const int32_t block_size_;
  const bool prefix_cache_;
  const uint64_t model_salt_;
  const bool rewrite_shared_;  // see CacheFaultInjection
  PrefixHasher hasher_;
  KvBlocks pool_;
  uint64_t cache_queries_ = 0, cache_hits_ = 0;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_KV_SEQUENCE_BLOCKS_H_
