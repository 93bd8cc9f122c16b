#ifndef SPECFABRIC_SCHEDULER_KV_BLOCKS_H_
#define SPECFABRIC_SCHEDULER_KV_BLOCKS_H_

// Which blocks of the KV cache are in use, and by how many owners. Only accounting: the memory is
// the ranks'. A block of several owners (a shared prefix) is free when the last has released it.

#include <cstdint>
#include <optional>
#include <vector>

namespace specfabric::scheduler {

class KvBlocks {
 public:
  explicit KvBlocks(int32_t blocks);

  // `count` blocks with one owner each, or nothing if fewer are free.
  std::optional<std::vector<int32_t>> Allocate(int32_t count);
  // One more owner of a block that has one.
  void Retain(int32_t block);
  // One owner less. Releasing a free block is a programming error.
  void Release(int32_t block);
  void Release(const std::vector<int32_t>& blocks);

  int32_t total() const { return static_cast<int32_t>(owners_.size()); }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  int32_t used() const { return total() - free(); }
  int32_t owners(int32_t block) const { return owners_[block]; }

 private:
  std::vector<int32_t> owners_;  // [total]
  std::vector<int32_t> free_;    // the next one to hand out is at the back
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_KV_BLOCKS_H_
