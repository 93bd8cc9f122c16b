#include "scheduler/kv/sequence_blocks.h"

#include <algorithm>

#include "absl/types/span.h"
#include "base/check.h"

namespace specfabric::scheduler {

SequenceBlocks::SequenceBlocks(const SchedulerOptions& options)
    : block_size_(options.block_size),
      prefix_cache_(options.prefix_cache),
      model_salt_(options.model_salt),
      rewrite_shared_(options.cache_fault_injection.rewrite_shared),
      hasher_(options.cache_seed, options.cache_fault_injection.hash_bits),
      pool_(options.kv_blocks, options.block_size, options.cache_fault_injection.compare_tokens) {}

bool SequenceBlocks::Grow(int32_t slots, Sequence* sequence) {
  const int32_t missing = BlocksFor(slots) - static_cast<int32_t>(sequence->blocks.size());
  return missing <= 0 || pool_.Take(missing, &sequence->blocks);
}

void SequenceBlocks::Trim(Sequence* sequence) {
  pool_.ReleaseFrom(BlocksFor(std::max(sequence->kv_written, sequence->moves_end)),
                    &sequence->blocks);
}

void SequenceBlocks::Drop(Sequence* sequence) {
  pool_.ReleaseFrom(0, &sequence->blocks);
  sequence->moves.clear();
  sequence->moves_end = 0;
  sequence->kv_written = sequence->settled = sequence->published = 0;
  sequence->publishes = true;
}

void SequenceBlocks::Forget(Sequence* sequence) {
  const std::vector<int32_t> blocks = sequence->blocks;
  Drop(sequence);
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) pool_.Forget(*block);
}

void SequenceBlocks::CountHits(int32_t found, Sequence* sequence) {
  if (sequence->preemptions > 0) return;
  sequence->cached_tokens += found;
  cache_hits_ += found;
}

void SequenceBlocks::CountQuery(const Sequence& sequence) {
  if (prefix_cache_) cache_queries_ += sequence.committed_size();
}

const BlockKey& SequenceBlocks::Key(int32_t block, Sequence* sequence) {
  std::vector<BlockKey>& keys = sequence->keys;
  const absl::Span<const base::TokenId> committed(sequence->committed);
  SPECFABRIC_CHECK(static_cast<size_t>(block + 1) * block_size_ <= committed.size());
  for (int32_t i = static_cast<int32_t>(keys.size()); i <= block; ++i) {
    const BlockKey parent =
        i > 0 ? keys.back() : hasher_.Root(model_salt_, sequence->request.cache_salt);
    keys.push_back(hasher_.Extend(
        parent, committed.subspan(static_cast<size_t>(i) * block_size_, block_size_)));
  }
  return keys[block];
}

KvBlocks::Content SequenceBlocks::ContentOf(int32_t block, Sequence* sequence) {
  return {.key = Key(block, sequence),
          .parent = block > 0 ? sequence->blocks[block - 1] : KvBlocks::kNone,
          .salt = sequence->request.cache_salt,
          .tokens = absl::MakeConstSpan(sequence->committed)
                        .subspan(static_cast<size_t>(block) * block_size_, block_size_)};
}

int32_t SequenceBlocks::AdoptCached(Sequence* sequence) {
  if (!prefix_cache_ || sequence->scores() ||
      sequence->kv_written != sequence->published * block_size_) {
    return 0;
  }
  // The last token is always computed: its logits are needed.
  const int32_t end = (sequence->committed_size() - 1) / block_size_;
  const int32_t before = sequence->published;
  for (int32_t i = before; i < end; ++i) {
    const int32_t block = pool_.Find(ContentOf(i, sequence));
    if (block == KvBlocks::kNone) break;
    pool_.Retain(block);
    if (i < static_cast<int32_t>(sequence->blocks.size())) {
      pool_.Release(sequence->blocks[i]);
      sequence->blocks[i] = block;
    } else {
      sequence->blocks.push_back(block);
    }
    ++sequence->published;
  }
  sequence->kv_written = sequence->settled = sequence->published * block_size_;
  if (rewrite_shared_ && sequence->published > before) --sequence->kv_written;
  return (sequence->published - before) * block_size_;
}

bool SequenceBlocks::Publishes(const Sequence& sequence) const {
  return prefix_cache_ && sequence.publishes &&
         (sequence.published + 1) * block_size_ <= sequence.settled;
}

void SequenceBlocks::Prefetch(Sequence* sequence) {
  if (!Publishes(*sequence)) return;
  pool_.Prefetch(sequence->blocks[sequence->published], Key(sequence->published, sequence));
}

void SequenceBlocks::Publish(Sequence* sequence) {
  while (Publishes(*sequence)) {
    const int32_t i = sequence->published;
    const int32_t own = sequence->blocks[i];
    const int32_t published = pool_.Publish(own, ContentOf(i, sequence));
    if (published == KvBlocks::kNone) {
      sequence->publishes = false;
      return;
    }
    if (published != own) {
      pool_.Retain(published);
      pool_.Release(own);
      sequence->blocks[i] = published;
    }
    ++sequence->published;
  }
}

}  // namespace specfabric::scheduler
