#include "scheduler/kv_blocks.h"

#include "base/check.h"

namespace specfabric::scheduler {

KvBlocks::KvBlocks(int32_t blocks) : owners_(blocks, 0), free_(blocks) {
  for (int32_t i = 0; i < blocks; ++i) free_[i] = blocks - 1 - i;
}

std::optional<std::vector<int32_t>> KvBlocks::Allocate(int32_t count) {
  SPECFABRIC_CHECK(count >= 0);
  if (count > free()) return std::nullopt;
  std::vector<int32_t> blocks(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - count);
  for (int32_t block : blocks) {
    SPECFABRIC_CHECK(owners_[block] == 0);
    owners_[block] = 1;
  }
  return blocks;
}

void KvBlocks::Retain(int32_t block) {
  SPECFABRIC_CHECK(block >= 0 && block < total() && owners_[block] > 0);
  ++owners_[block];
}

void KvBlocks::Release(int32_t block) {
  SPECFABRIC_CHECK(block >= 0 && block < total() && owners_[block] > 0);
  if (--owners_[block] == 0) free_.push_back(block);
}

void KvBlocks::Release(const std::vector<int32_t>& blocks) {
  for (int32_t block : blocks) Release(block);
}

}  // namespace specfabric::scheduler
