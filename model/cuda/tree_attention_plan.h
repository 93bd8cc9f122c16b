#ifndef SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_PLAN_H_
#define SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_PLAN_H_

// How the attention of a batch is cut into thread blocks; plain C++, worked out on the host once a
// pass and used by all layers.
//
// Queries are cut into tiles of whole rows of one sequence, such that rows times heads of a KV head
// fill at most `tile_q` lines of a thread block (the packing of FlashInfer, arXiv 2501.01005). A
// tile walks its sequence's slots up to the last that one of its rows sees, so that early rows of a
// prefill do not walk the late ones' slots, and the walk may be cut into chunks that run side by
// side and are merged afterwards (flash-decoding).
//
// What changes the bits of a row, and what batch_invariant does about it:
// * tile_q. FlashInfer's thread block of 16 lines has four warps that share out every step of the
//   walk and add up their sums, those of 64 and 128 lines walk 128 and 64 slots a step. Always 64.
// * Where the walk is cut. Always at multiples of `chunk` slots, whatever the row and the batch.
// * Slots behind the last one that the row sees, walked because a later row of its tile sees them:
//   nothing. A step in which a row sees nothing leaves its sums as they were, to the bit, because
//   the kernel scales scores before it takes their maximum (TreeVariant), and a chunk in which it
//   sees nothing is merged with weight 0. Both take it that the device's approximate exp2(0) and
//   1 / 1 are 1 and log2(1) is 0; the test compares bits.
// * The other lines of the thread block: nothing, each is a row of matrix products of its own.
// So a row's bits then depend on its query, on the keys and values it sees and on where these lie
// among its sequence's slots. A tree's path still differs from the same tokens in a chain, where no
// siblings lie between.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/isa.h"
#include "model/batch.h"
#include "model/cuda/tree_attention_rules.h"

namespace specfabric::model::cuda {

// The most that a plan can need.
struct TreeAttentionCapacity {
  int32_t tile_q = 0;  // 16, 64 or 128; 0: chosen for each batch
  int32_t tiles = 0;
  int32_t items = 0;
  int32_t partial_rows = 0;  // of one wave
  int32_t merges = 0;
};

// Some rows of one sequence. The device reads it.
struct AttentionTile {
  int32_t rows = 0;
  int32_t walk = 0;        // slots up to the last that a row of the tile sees
  int32_t prefix = 0;      // slots that every row sees
  int32_t first_node = 0;  // of the first row: its own slot is prefix + first_node
  int32_t first_word = 0;  // of the first row's mask, in Batch::ancestors; -1: causal
  int32_t mask_words = 0;
};

// Whether row `row` of a tile sees slot `slot`, of those that the tile walks. ancestors: the whole
// batch's. The kernel's mask.
SPECFABRIC_HOST_DEVICE inline bool Sees(const AttentionTile& tile, const uint64_t* ancestors,
                                        int32_t row, int32_t slot) {
  if (row >= tile.rows) return false;  // a line of the thread block that no row fills
  if (slot < tile.prefix) return true;
  const int32_t node = slot - tile.prefix;
  if (tile.first_word < 0) return node <= tile.first_node + row;
  return (ancestors[tile.first_word + row * tile.mask_words + node / 64] >> (node % 64) & 1) != 0;
}

// What one launch does, and the merge after it: the items' partial results are numbered from 0 in
// every wave, so that they need no more memory than a wave of them.
struct AttentionWave {
  int32_t first_item = 0;
  int32_t items = 0;
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t first_merge = 0;
  int32_t partial_rows = 0;
};

struct TreeAttentionPlan {
  int32_t tile_q = 0;
  int32_t chunk = 0;     // slots
  bool partial = false;  // results are partial and merged; otherwise no walk is cut
  std::vector<AttentionTile> tiles;
  std::vector<int32_t> query_first;   // [tiles] row of the batch
  std::vector<int32_t> output_first;  // [tiles] partial row, or else row of the batch
  std::vector<int32_t> block_first;   // [tiles] into Batch::blocks
  // A thread block for each KV head. Row r of a tile of n chunks puts its partial result of chunk c
  // in partial row output_first + r n + c.
  std::vector<int32_t> item_tile;
  std::vector<int32_t> item_part;  // 0, but where one row's heads of a KV head fill several blocks
  std::vector<int32_t> item_chunk;
  // Row first_row + i of a wave is merged from its partial rows merge_first[first_merge + i] up to
  // merge_first[first_merge + i + 1].
  std::vector<int32_t> merge_first;
  std::vector<AttentionWave> waves;
  std::vector<int32_t> order;  // sequences with rows, by their first row
};

// InvalidArgument: a shape that there is no kernel for, or limits beyond 32-bit offsets.
absl::StatusOr<TreeAttentionCapacity> CapacityOf(const TreeAttentionRules& rules);

// Checks the batch and fills `plan`, reusing its memory. InvalidArgument: a batch beyond the
// limits, or one that MakeAttentionPlan refuses for its rows, blocks or masks.
absl::Status MakeTreeAttentionPlan(const Batch& batch, const TreeAttentionRules& rules,
                                   const TreeAttentionCapacity& capacity, TreeAttentionPlan* plan);

// Where the arrays of a plan lie in one piece of memory, in bytes from its beginning.
struct PlanLayout {
  int32_t tile_count = 0;
  int32_t item_count = 0;
  size_t chunk = 0;  // int32
  size_t rows = 0;   // uint32
  size_t tiles = 0;
  size_t query_first = 0;
  size_t output_first = 0;
  size_t block_first = 0;  // [tile_count + 1], the last being the number of blocks
  size_t item_tile = 0;
  size_t item_part = 0;
  size_t item_chunk = 0;
  size_t item_valid = 0;  // bool; false: padding
  size_t merge_first = 0;
  size_t ancestors = 0;
  size_t blocks = 0;
  size_t size = 0;
};

// Where the arrays of the largest batch lie: the same place in every batch if fixed_grid, and
// otherwise the most memory that any needs.
PlanLayout LargestLayout(const TreeAttentionRules& rules, const TreeAttentionCapacity& capacity);
PlanLayout LayoutOf(const TreeAttentionPlan& plan, const Batch& batch);

// Writes a plan to `memory`, which is of 16-byte alignment and has room for the layout, and returns
// the bytes up to the end of what was written.
size_t Pack(const TreeAttentionPlan& plan, const Batch& batch, const PlanLayout& layout,
            std::byte* memory);

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_PLAN_H_
