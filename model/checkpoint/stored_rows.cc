#include "model/checkpoint/stored_rows.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace specfabric::model {
namespace {

int64_t FirstElement(const StoredRows::Shard& shard, int32_t row) {
  return int64_t{shard.first_row + row} * shard.columns + shard.first_column;
}

}  // namespace

int ReadingThreads() {
  constexpr int kMost = 8;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 1, kMost);
}

void StoredRows::Add(const Shard& shard) {
  shards_.push_back(shard);
  rows_ += shard.row_count;
}

template <typename Visit>
void StoredRows::ForShards(int32_t first, int32_t count, const Visit& visit) const {
  for (const Shard& shard : shards_) {
    if (first < shard.row_count) {
      const int32_t here = std::min(count, shard.row_count - first);
      visit(shard, first, here);
      count -= here;
      if (count == 0) return;
    }
    first = std::max(first - shard.row_count, 0);
  }
}

void StoredRows::Read(int32_t first, int32_t count, base::DataType type, std::byte* out) const {
  const int64_t row_bytes = int64_t{inputs_} * base::Bytes(type);
  ForShards(first, count, [&](const Shard& shard, int32_t row, int32_t rows) {
    if (shard.columns == inputs_) {
      ReadElements(*shard.tensor, FirstElement(shard, row), int64_t{rows} * inputs_, type, out);
      out += rows * row_bytes;
      return;
    }
    for (const int32_t end = row + rows; row < end; ++row, out += row_bytes) {
      ReadElements(*shard.tensor, FirstElement(shard, row), inputs_, type, out);
    }
  });
}

void StoredRows::ReadAhead(int32_t first, int32_t count) const {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  ForShards(first, count, [&](const Shard& shard, int32_t row, int32_t rows) {
    const int64_t span = int64_t{rows - 1} * shard.columns + inputs_;
    const int element = ElementBytes(shard.tensor->type);
    const auto data = reinterpret_cast<uintptr_t>(shard.tensor->data) +
                      static_cast<uintptr_t>(FirstElement(shard, row) * element);
    const uintptr_t begin = data / page * page;
    // A failure is no error: the pages are then read as they are touched.
    (void)madvise(reinterpret_cast<void*>(begin), data + span * element - begin, MADV_WILLNEED);
  });
}

}  // namespace specfabric::model
