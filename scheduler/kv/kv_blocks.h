#ifndef SPECFABRIC_SCHEDULER_KV_KV_BLOCKS_H_
#define SPECFABRIC_SCHEDULER_KV_KV_BLOCKS_H_

// The pool of KV blocks: who owns each block, and which full blocks can be found again by their
// tokens (the prefix cache). Only accounting: the KV itself is in the model, of a target's ranks or
// of a draft worker. Single-threaded; allocates nothing after the construction.
//
// A block is free, or owned (by all sequences that share it), or cached: published, without an
// owner, and kept until the room is needed. A published block is never written again. Of the cached
// blocks the one released longest ago is evicted first. Owners release a sequence's last block
// first, and whoever owns a block owns the one before it, so that children are evicted before their
// parents.

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "base/huge_page_allocator.h"
#include "base/types.h"
#include "scheduler/kv/prefix_hash.h"

namespace specfabric::scheduler {

class KvBlocks {
 public:
  static constexpr int32_t kNone = -1;

  // The content of a full block as the cache knows it. `parent` is a block of the pool, not a hash:
  // blocks with equal tokens and the same parent hold the same KV.
  struct Content {
    BlockKey key;
    int32_t parent = kNone;                  // the block before it; kNone for a sequence's first
    uint64_t salt = 0;                       // see SequenceRequest::cache_salt
    absl::Span<const base::TokenId> tokens;  // [block_size]
  };

  // compare_tokens false: fault injection, equal hashes are taken for equal tokens.
  KvBlocks(int32_t blocks, int32_t block_size, bool compare_tokens = true);

  // Appends `count` blocks with one owner each, all or nothing.
  bool Take(int32_t count, std::vector<int32_t>* blocks);
  // One more owner of a block that is owned or cached.
  void Retain(int32_t block);
  // One owner less. Releasing a block without an owner is a programming error.
  void Release(int32_t block);
  // Releases all but the first `kept`, the last one first.
  void ReleaseFrom(int32_t kept, std::vector<int32_t>* blocks);

  // The published block of this content, or kNone. The caller does not own it yet.
  int32_t Find(const Content& content) const;
  // Publishes an owned block whose parent, if any, is published. Returns the block that Find
  // returns for this content from now on: `block`, or another one that was published before; or
  // kNone if the key is taken by other tokens.
  int32_t Publish(int32_t block, const Content& content);
  // Makes a cached block, and the blocks published after it, unfindable. Does nothing to a block
  // that has an owner or is free.
  void Forget(int32_t block);
  // Prefetches what Publish of this block reads.
  void Prefetch(int32_t block, const BlockKey& key) const;

  int32_t total() const { return static_cast<int32_t>(blocks_.size()); }
  // Blocks that can be taken: free or cached.
  int32_t available() const { return static_cast<int32_t>(free_.size()) + cached_; }
  int32_t used() const { return total() - available(); }
  int32_t cached() const { return cached_; }
  int32_t owners(int32_t block) const { return blocks_[block].owners; }
  bool published(int32_t block) const { return blocks_[block].published; }

  // Ends the process if the accounting is inconsistent. Time in proportion to the pool: for tests.
  void Check() const;

 private:
  struct Block {
    int32_t owners = 0;
    bool published = false;
    bool forgotten = false;  // published, but not in by_key_
    BlockKey key;
    int32_t parent = kNone;
    int32_t children = 0;  // published ones
    uint64_t salt = 0;
    int32_t older = kNone, newer = kNone;  // cached: neighbours by time of release
  };
  // Keys are hashes already.
  struct KeyHash {
    size_t operator()(const BlockKey& key) const { return key.low; }
  };

  bool Holds(int32_t block, const Content& content) const;
  void Link(int32_t block);
  void Unlink(int32_t block);
  void Evict(int32_t block);

  template <typename T>
  using Vector = std::vector<T, base::HugePageAllocator<T>>;

  const int32_t block_size_;
  const bool compare_tokens_;
  Vector<Block> blocks_;
  Vector<base::TokenId> tokens_;  // [total][block_size], of published blocks
  Vector<int32_t> free_;          // the next one to hand out is at the back
  absl::flat_hash_map<BlockKey, int32_t, KeyHash, std::equal_to<>,
                      base::HugePageAllocator<std::pair<const BlockKey, int32_t>>>
      by_key_;
  int32_t oldest_ = kNone, newest_ = kNone;  // ends of the list of cached blocks
  int32_t cached_ = 0;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_KV_KV_BLOCKS_H_
