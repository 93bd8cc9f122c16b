#ifndef SPECFABRIC_MODEL_CHECKPOINT_STORED_ROWS_H_
#define SPECFABRIC_MODEL_CHECKPOINT_STORED_ROWS_H_

// The rows of a linear layer that one rank holds, where they lie in the mapped files of a
// checkpoint: those of its stored matrices (query, key and value; gate and up), one after the
// other. A small value, to be copied; valid while the checkpoint is open. Reading is for any number
// of threads.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/data_type.h"
#include "model/checkpoint/safetensors.h"

namespace specfabric::model {

class StoredRows {
 public:
  // A rectangle of a stored matrix.
  struct Shard {
    const StoredTensor* tensor = nullptr;
    int32_t columns = 0;  // of the whole matrix
    int32_t first_row = 0, row_count = 0;
    int32_t first_column = 0;
  };

  // inputs: the columns of every shard.
  explicit StoredRows(int32_t inputs) : inputs_(inputs) {}
  void Add(const Shard& shard);

  int32_t rows() const { return rows_; }
  int32_t inputs() const { return inputs_; }
  // Writes rows [first, first + count), [count][inputs] elements of `type`: a plain copy where they
  // are stored as that type. `out` is aligned for it.
  void Read(int32_t first, int32_t count, base::DataType type, std::byte* out) const;
  // Begins to read what of these rows is not in the page cache, in large pieces rather than page by
  // page as they are touched.
  void ReadAhead(int32_t first, int32_t count) const;

 private:
  // Calls `visit` with each shard that holds some of the rows, the first of them in the shard, and
  // how many they are.
  template <typename Visit>
  void ForShards(int32_t first, int32_t count, const Visit& visit) const;

  int32_t inputs_ = 0, rows_ = 0;
  std::vector<Shard> shards_;
};

// How many threads read a checkpoint: enough to copy from the page cache faster than a GPU's link
// takes it, and no more than half of the machine's.
int ReadingThreads();

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_CHECKPOINT_STORED_ROWS_H_
