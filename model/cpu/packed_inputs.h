#ifndef SPECFABRIC_MODEL_CPU_PACKED_INPUTS_H_
#define SPECFABRIC_MODEL_CPU_PACKED_INPUTS_H_

// A layer's inputs as the panel kernels take them (cpu/kernels.h): the rows of a block next to each
// other at every step, or every tile of steps, so that a kernel reads one stream whatever the rows'
// stride is. Rows a power of two apart would otherwise share few sets of a cache. Owned by the
// layer.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "model/checkpoint/config.h"
#include "model/cpu/aligned_buffer.h"
#include "model/cpu/kernels.h"
#include "model/cpu/thread_pool.h"

namespace specfabric::model::cpu {

class PackedInputs {
 public:
  // Of rows of parts * part_inputs inputs. `kernels` and `pool` must outlive it.
  PackedInputs(DataType dtype, int parts, int part_inputs, const Kernels& kernels,
               ThreadPool* pool);

  // Steps of one part: an input each, or two in bfloat16; in tiles as many as fill the last one.
  int steps() const { return steps_; }
  // Into how many blocks the kernels cut the rows of one call, and which rows block b has.
  int Blocks(int rows) const { return (rows + block_rows_ - 1) / block_rows_; }
  int block_rows() const { return block_rows_; }
  struct BlockRows {
    int first = 0, count = 0;
  };
  BlockRows RowsOfBlock(int rows, int b) const {
    const int blocks = Blocks(rows), first = rows * b / blocks;
    return {first, rows * (b + 1) / blocks - first};
  }
  bool tiles() const { return tiles_; }
  size_t Bytes(int rows) const { return rows * RowWords() * sizeof(uint32_t); }
  // Takes x: [rows][parts * part_inputs], which must not change while it is used. bfloat16 rounds.
  // ResourceExhausted: no memory.
  absl::Status Pack(const float* x, int rows);
  // Makes room instead, for the caller to write by way of Step. Likewise.
  absl::Status Reserve(int rows);
  // For a call with rows from `row` on, a multiple of kMaxPanelRows. Until the next Pack.
  const void* Call(int row) const { return words_ + row * RowWords(); }
  // Of the room, from a step of part 0 on, for the block of `rows` rows that begins with `row`.
  uint32_t* Step(int row, int rows, int64_t step) {
    return Room() + row * RowWords() + step * rows;
  }

 private:
  // Rows of x, one behind the other, and where they go, interleaved.
  struct Block {
    const float* x = nullptr;
    int rows = 0;
    uint32_t* out = nullptr;
  };

  size_t RowWords() const { return size_t{1} * parts_ * steps_; }
  uint32_t* Room() const { return static_cast<uint32_t*>(packed_.data()); }
  // In pieces of a block that stay in L1.
  int PartTurns() const;
  void PackTurn(const Block& block, int turn) const;

  const DataType dtype_;
  const Kernels& kernels_;
  ThreadPool* const pool_;
  const bool tiles_;
  const int block_rows_;
  const int parts_;
  const int part_inputs_;
  const int steps_;
  AlignedBuffer packed_;  // in huge pages: a block's steps are read once for every panel
  std::vector<Block> blocks_;
  const uint32_t* words_ = nullptr;
};

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_PACKED_INPUTS_H_
