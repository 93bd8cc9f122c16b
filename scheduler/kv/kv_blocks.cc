#include "scheduler/kv/kv_blocks.h"

#include <algorithm>

#include "base/check.h"

namespace specfabric::scheduler {

KvBlocks::KvBlocks(int32_t blocks, int32_t block_size, bool compare_tokens)
    : block_size_(block_size),
      compare_tokens_(compare_tokens),
      blocks_(blocks),
      tokens_(static_cast<size_t>(blocks) * block_size, base::kNoToken),
      free_(blocks) {
  for (int32_t i = 0; i < blocks; ++i) free_[i] = blocks - 1 - i;
  // Large enough for the table to drop the marks of erased entries in place instead of growing.
  by_key_.reserve(static_cast<size_t>(blocks) + blocks / 4);
}

bool KvBlocks::Take(int32_t count, std::vector<int32_t>* blocks) {
  SPECFABRIC_CHECK(count >= 0);
  if (count > available()) return false;
  for (; count > 0; --count) {
    if (free_.empty()) Evict(oldest_);
    const int32_t block = free_.back();
    free_.pop_back();
    SPECFABRIC_CHECK(blocks_[block].owners == 0 && !blocks_[block].published);
    blocks_[block].owners = 1;
    blocks->push_back(block);
  }
  return true;
}

void KvBlocks::Retain(int32_t block) {
  SPECFABRIC_CHECK(block >= 0 && block < total());
  SPECFABRIC_CHECK(blocks_[block].owners > 0 || blocks_[block].published);
  if (blocks_[block].owners++ == 0) Unlink(block);
}

void KvBlocks::Release(int32_t block) {
  SPECFABRIC_CHECK(block >= 0 && block < total() && blocks_[block].owners > 0);
  if (--blocks_[block].owners > 0) return;
  if (blocks_[block].published) {
    Link(block);
  } else {
    free_.push_back(block);
  }
}

void KvBlocks::ReleaseFrom(int32_t kept, std::vector<int32_t>* blocks) {
  SPECFABRIC_CHECK(kept >= 0);
  for (; static_cast<int32_t>(blocks->size()) > kept; blocks->pop_back()) Release(blocks->back());
}

bool KvBlocks::Holds(int32_t block, const Content& content) const {
  if (!compare_tokens_) return true;
  const auto tokens = tokens_.begin() + static_cast<ptrdiff_t>(block) * block_size_;
  return blocks_[block].parent == content.parent && blocks_[block].salt == content.salt &&
         std::equal(tokens, tokens + block_size_, content.tokens.begin(), content.tokens.end());
}

int32_t KvBlocks::Find(const Content& content) const {
  const auto it = by_key_.find(content.key);
  return it != by_key_.end() && Holds(it->second, content) ? it->second : kNone;
}

int32_t KvBlocks::Publish(int32_t block, const Content& content) {
  SPECFABRIC_CHECK(owners(block) > 0 && !published(block));
  SPECFABRIC_CHECK(static_cast<int32_t>(content.tokens.size()) == block_size_);
  SPECFABRIC_CHECK(content.parent == kNone || published(content.parent));
  const auto [it, inserted] = by_key_.try_emplace(content.key, block);
  if (!inserted) return Holds(it->second, content) ? it->second : kNone;
  std::copy(content.tokens.begin(), content.tokens.end(),
            tokens_.begin() + static_cast<ptrdiff_t>(block) * block_size_);
  Block& entry = blocks_[block];
  entry.published = true;
  entry.key = content.key;
  entry.parent = content.parent;
  entry.salt = content.salt;
  if (content.parent != kNone) ++blocks_[content.parent].children;
  return block;
}

void KvBlocks::Prefetch(int32_t block, const BlockKey& key) const {
  by_key_.prefetch(key);
  __builtin_prefetch(&blocks_[block], 1);
  __builtin_prefetch(&tokens_[static_cast<size_t>(block) * block_size_], 1);
}

void KvBlocks::Link(int32_t block) {
  blocks_[block].older = newest_;
  (newest_ == kNone ? oldest_ : blocks_[newest_].newer) = block;
  newest_ = block;
  ++cached_;
}

void KvBlocks::Unlink(int32_t block) {
  Block& entry = blocks_[block];
  (entry.older == kNone ? oldest_ : blocks_[entry.older].newer) = entry.newer;
  (entry.newer == kNone ? newest_ : blocks_[entry.newer].older) = entry.older;
  entry.older = entry.newer = kNone;
  --cached_;
}

void KvBlocks::Evict(int32_t block) {
  SPECFABRIC_CHECK(block != kNone);
  Block& entry = blocks_[block];
  SPECFABRIC_CHECK(entry.owners == 0 && entry.published && entry.children == 0);
  Unlink(block);
  if (!entry.forgotten) SPECFABRIC_CHECK(by_key_.erase(entry.key) == 1);
  if (entry.parent != kNone) --blocks_[entry.parent].children;
  entry.published = entry.forgotten = false;
  entry.parent = kNone;
  free_.push_back(block);
}

void KvBlocks::Forget(int32_t block) {
  SPECFABRIC_CHECK(block >= 0 && block < total());
  Block& entry = blocks_[block];
  if (entry.owners > 0 || !entry.published) return;
  // The blocks after it are only found through it, and need no mark: they are evicted when room is
  // needed.
  if (entry.children > 0 && !entry.forgotten) {
    SPECFABRIC_CHECK(by_key_.erase(entry.key) == 1);
    entry.forgotten = true;
  }
  if (entry.children == 0) Evict(block);
}

void KvBlocks::Check() const {
  std::vector<int32_t> children(blocks_.size(), 0);
  size_t unowned = 0, found_by_key = 0;
  for (int32_t i = 0; i < total(); ++i) {
    const Block& block = blocks_[i];
    SPECFABRIC_CHECK(block.owners >= 0);
    unowned += block.owners == 0;
    if (!block.published) {
      SPECFABRIC_CHECK(block.children == 0 && !block.forgotten);
      continue;
    }
    const auto it = by_key_.find(block.key);
    SPECFABRIC_CHECK((it != by_key_.end() && it->second == i) == !block.forgotten);
    found_by_key += !block.forgotten;
    if (block.parent == kNone) continue;
    ++children[block.parent];
    SPECFABRIC_CHECK(published(block.parent));
    SPECFABRIC_CHECK(block.owners == 0 || owners(block.parent) > 0);
  }
  for (int32_t i = 0; i < total(); ++i) SPECFABRIC_CHECK(children[i] == blocks_[i].children);
  SPECFABRIC_CHECK(found_by_key == by_key_.size());
  SPECFABRIC_CHECK(unowned == static_cast<size_t>(available()));
  int32_t linked = 0;
  for (int32_t i = oldest_; i != kNone; i = blocks_[i].newer, ++linked) {
    SPECFABRIC_CHECK(blocks_[i].owners == 0 && blocks_[i].published);
  }
  SPECFABRIC_CHECK(linked == cached_);
  for (int32_t i : free_) SPECFABRIC_CHECK(blocks_[i].owners == 0 && !blocks_[i].published);
}

}  // namespace specfabric::scheduler
