#ifndef SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_PLAN_H_
#define SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_PLAN_H_

// How split-KV attention (tree_attention_split.h) shares out a batch among thread blocks; plain
// C++, worked out on the host once a pass and used by all layers.
//
// A row's list: the slots that it sees, in their order: its sequence's first kv_len slots, then its
// ancestors' and its own. Slots that it does not see are not in it, so the path of a tree has the
// list of the same tokens in a chain.
//
// What a row's bits are made of, and in which order:
// * A leaf is kLeafSlots slots of the list that begin at a multiple of that number. Its result is
//   the highest score, the sum of the exponentials of the others less it, and the values weighted
//   with these: one block computes it, by the same products and sums whatever else the block has.
// * A chunk is kChunkLeaves leaves that begin at a multiple of that number. Their results are
//   folded (Fold of the kernel) from the first to the last, starting with nothing.
// * The chunks of the list are folded likewise; the row is that result over its sum.
// Folding with the result of no slots changes no bit. So whether a block takes one leaf, a chunk or
// a whole list, whether results are folded in its registers or by the last block from memory, and
// how many rows a block has, are free to follow the batch and the GPU: a row's bits depend only on
// its query and on the keys and values of its list, not on where these lie, nor on the other rows.
//
// Queries are packed as in tree_attention_plan.h: a tile is whole rows of one sequence, times the
// heads of a KV head, in at most kTileLines * `tiles` lines of a block. The rows of a causal tile
// have lists that are beginnings of one another, and share every leaf; those of a tree share the
// leaves that lie before kv_len as a whole, and each has the rest, its tail, for itself.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/batch.h"
#include "model/cuda/tree_attention_rules.h"

namespace specfabric::model::cuda {

constexpr int32_t kTileLines = 16;
constexpr int32_t kLeafSlots = 64;
constexpr int32_t kChunkLeaves = 8;
// SplitItem::row of items that all rows of the tile share, and of those that also take the rows'
// tails, one after the other.
constexpr int32_t kSharedLeaves = -1, kSharedLeavesAndTails = -2;

// What a thread block does for one KV head; the device reads it. A tile's results are numbered by
// pieces, from its shared leaves' on: piece p of row r is partial row first_partial + p rows + r.
struct alignas(16) SplitItem {
  // The tile.
  int32_t first_row = 0;  // of the batch
  int32_t rows = 0;
  int32_t visible = 0;  // causal: slots of the first row's list, row r having r more; else kv_len
  int32_t first_block = 0;  // into Batch::blocks
  int32_t first_word = 0;   // of the first row's mask, in Batch::ancestors; -1: causal
  int32_t shared_leaves = 0;
  int32_t pieces = 0;         // of the shared leaves
  int32_t piece_leaves = 0;   // of each of these but the last: 1 or kChunkLeaves
  int32_t first_partial = 0;  // meaningless if there is one item
  int32_t counter = 0;        // of the tile's first part
  int32_t items = 0;  // of each part of the tile; the last to end folds all. 1: nothing to fold
  // The item.
  int32_t part = 0;  // 0, but where one row's heads of a KV head fill several blocks
  int32_t row = 0;   // of the tile, whose own leaves these are; or one of the above
  int32_t first_leaf = 0;
  int32_t leaves = 0;  // of one chunk if its result is a piece
  int32_t piece = 0;
};

// What a block reads first of a plan on the device; the items follow.
struct alignas(16) SplitHeader {
  int32_t items = 0;
  int32_t mask_words = 0;
  uint32_t ancestors = 0;  // where Batch::ancestors and blocks lie, in bytes from the header
  uint32_t blocks = 0;
};

// The most that a plan can need.
struct SplitCapacity {
  int32_t tiles = 0;  // 1, 2 or 4; 0: chosen for each batch
  int32_t items = 0;
  // The same for all limits of a batch.
  int32_t partial_rows = 0;  // [heads][head_dim]
  int32_t counters = 0;      // [kv_heads]
  size_t plan_bytes = 0;
};

struct SplitPlan {
  int32_t tiles = 0;  // sixteens of lines that a block has
  std::vector<SplitItem> items;
  std::vector<int32_t> order;  // sequences with rows, by their first row
};

// InvalidArgument: a shape that there is no kernel for, or limits beyond 32-bit offsets.
absl::StatusOr<SplitCapacity> SplitCapacityOf(const TreeAttentionRules& rules);

// Checks the batch and fills `plan`, reusing its memory. InvalidArgument: what CheckBatch refuses.
absl::Status MakeSplitPlan(const Batch& batch, const TreeAttentionRules& rules,
                           const SplitCapacity& capacity, SplitPlan* plan);

// Writes a plan to `memory`, which is of 16-byte alignment and has room for the capacity's
// plan_bytes, and returns the bytes written.
size_t PackSplitPlan(const SplitPlan& plan, const Batch& batch, std::byte* memory);

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_PLAN_H_
