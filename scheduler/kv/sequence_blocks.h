#ifndef SPECFABRIC_SCHEDULER_KV_SEQUENCE_BLOCKS_H_
#define SPECFABRIC_SCHEDULER_KV_SEQUENCE_BLOCKS_H_

// What a sequence does with the pool: grows, shares what the cache has, publishes what it filled.
// A sequence's blocks are one table: first those that the cache knows (perhaps shared, full, never
// written again), then its own.

#include <cstdint>

#include "scheduler/kv/kv_blocks.h"
#include "scheduler/kv/prefix_hash.h"
#include "scheduler/sequence.h"

namespace specfabric::scheduler {

struct SequenceBlocks {
  int32_t block_size = 0;
  bool prefix_cache = true;
  uint64_t model_salt = 0;
  bool rewrite_shared = false;  // see CacheFaultInjection
  PrefixHasher hasher;
  KvBlocks pool;

  explicit SequenceBlocks(const SchedulerOptions& options);

  int32_t BlocksFor(int32_t slots) const { return (slots + block_size - 1) / block_size; }
  // Slots that the sequence could have with all blocks that can be had.
  int32_t SlotsWithin(const Sequence& sequence) const {
    return (static_cast<int32_t>(sequence.blocks.size()) + pool.available()) * block_size;
  }

  // Takes what is missing for `slots`; false, and nothing taken, if that cannot be had.
  bool Grow(int32_t slots, Sequence* sequence);
  // Gives back the blocks behind what is written and what moves still read.
  void Trim(Sequence* sequence);
  // Gives back everything; nothing is written any more.
  void Drop(Sequence* sequence);

  // Of a sequence about to prefill at a block's start: goes on with the cached blocks of its next
  // tokens, all but the last one, in place of its own. Returns the tokens found.
  int32_t AdoptCached(Sequence* sequence);
  // Brings into the cache what the next Publish reads, if there is something to publish: it is
  // spread over as much memory as the pool has.
  void Prefetch(Sequence* sequence);
  // Publishes the blocks that are full and settled. Where the cache has another one of the same
  // content, that one takes the place of the sequence's.
  void Publish(Sequence* sequence);

  // Gives back everything, as Drop. What it wrote may be no numbers: blocks that nobody else owns
  // are no longer found in the cache.
  void Forget(Sequence* sequence);

  // The key of a full block of committed tokens.
  const BlockKey& Key(int32_t block, Sequence* sequence);

 private:
  // A block is full and settled that the cache does not know.
  bool Publishes(const Sequence& sequence) const;
  KvBlocks::Content ContentOf(int32_t block, Sequence* sequence);
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_KV_SEQUENCE_BLOCKS_H_
