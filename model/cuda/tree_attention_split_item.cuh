#ifndef SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_ITEM_CUH_
#define SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_ITEM_CUH_

// What an item of a split-KV plan means to a thread block: which lines it has, what their lists
// are, and where results are kept until they are folded.

#include <cstdint>

#include "model/cuda/tree_attention_split_kernel.h"
#include "model/cuda/tree_attention_split_plan.h"

namespace specfabric::model::cuda {

class ItemView {
 public:
  // lines: of the block.
  __device__ ItemView(const SplitCall& call, const SplitHeader& header, const SplitItem& item,
                      int32_t kv_head, int32_t lines)
      : call_(call),
        header_(header),
        item_(item),
        kv_head_(kv_head),
        group_(call.heads / call.kv_heads),
        first_line_(item.part * lines),
        end_(EndOfList()) {}

  __device__ const SplitItem& item() const { return item_; }
  __device__ bool causal() const { return item_.first_word < 0; }
  // Of the item, and the first of them in the tile.
  __device__ int32_t rows() const { return item_.row < 0 ? item_.rows : 1; }
  __device__ int32_t first_row() const { return max(item_.row, 0); }

  // A line of the block: of `rows` rows, the item's or, where pieces are folded, the tile's.
  struct Line {
    int32_t row, head;  // among these; among all heads
    bool valid;
  };
  __device__ Line LineAt(int32_t line, int32_t rows) const {
    const int32_t flat = first_line_ + line;
    return {flat / group_, kv_head_ * group_ + flat % group_, flat < rows * group_};
  }
  // Whether a line of the block is of that row.
  __device__ bool IsOf(int32_t line, int32_t row) const {
    const int32_t head = first_line_ + line - row * group_;
    return head >= 0 && head < group_;
  }
  // Sixteens of lines that `rows` rows fill from the block's first on, which has `most` of them.
  __device__ int32_t TilesOf(int32_t rows, int32_t most) const {
    return min((rows * group_ - first_line_ + kTileLines - 1) / kTileLines, most);
  }

  // Slots of the lists, as far as the item takes them: of the longest, and of the shortest.
  __device__ int32_t end() const { return end_; }
  __device__ int32_t shortest() const { return causal() ? item_.visible : end_; }

  // Leaf n of the item: the row whose it is, or -1 if it is all rows', and which of their lists.
  struct Leaf {
    int32_t row, index;
  };
  // kTails: the item has the tails of its rows.
  template <bool kTails>
  __device__ Leaf LeafAt(int32_t n) const {
    if (!kTails || n < item_.shared_leaves) return {-1, item_.first_leaf + n};
    n -= item_.shared_leaves;
    int32_t row = 0;
    for (int32_t tail = TailOf(row); n >= tail; tail = TailOf(row)) {
      n -= tail;
      ++row;
    }
    return {row, item_.shared_leaves + n};
  }
  // Slots that a row of the tile sees.
  __device__ int32_t Visible(int32_t row) const {
    if (causal()) return item_.visible + row;
    // A row of a tree sees kv_len slots and the nodes in its mask.
    int32_t seen = item_.visible;
    for (int32_t w = 0; w < header_.mask_words; ++w) seen += __popcll(Mask(row)[w]);
    return seen;
  }

  // The slot of the cache at place `i` of the item's part of its lists; -1 behind their end.
  template <bool kTails>
  __device__ int32_t SlotOf(int32_t i) const {
    if (i >= item_.leaves * kLeafSlots) return -1;
    const Leaf leaf = LeafAt<kTails>(i / kLeafSlots);
    int32_t slot = leaf.index * kLeafSlots + i % kLeafSlots;
    if (slot >= (leaf.row < 0 ? end_ : Visible(leaf.row))) return -1;
    if (!causal() && slot >= item_.visible) {
      slot = item_.visible + NodeAt(max(leaf.row, item_.row), slot - item_.visible);
    }
    const auto* const blocks =
        reinterpret_cast<const int32_t*>(call_.plan + header_.blocks) + item_.first_block;
    return blocks[slot / call_.block_size] * call_.block_size + slot % call_.block_size;
  }

  // Pieces that a row of the tile is folded from, and the leaf that one begins with.
  __device__ int32_t PiecesOf(int32_t row) const {
    if (causal()) return item_.pieces;
    const int32_t leaves = (Visible(row) + kLeafSlots - 1) / kLeafSlots;
    return item_.pieces + leaves - item_.shared_leaves;
  }
  __device__ int32_t FirstLeaf(int32_t piece) const {
    return piece < item_.pieces ? piece * item_.piece_leaves
                                : item_.shared_leaves + piece - item_.pieces;
  }
  __device__ int64_t PartialRow(int32_t piece, int32_t row) const {
    return int64_t{item_.first_partial} + int64_t{piece} * item_.rows + row;
  }
  // How many items of the tile's part have ended.
  __device__ uint32_t* Counter() const {
    return call_.counters + int64_t{item_.counter + item_.part} * call_.kv_heads + kv_head_;
  }

 private:
  // Leaves of a row of a tree behind those that all share.
  __device__ int32_t TailOf(int32_t row) const {
    return (Visible(row) + kLeafSlots - 1) / kLeafSlots - item_.shared_leaves;
  }
  __device__ const unsigned long long* Mask(int32_t row) const {
    return reinterpret_cast<const unsigned long long*>(call_.plan + header_.ancestors) +
           item_.first_word + row * header_.mask_words;
  }
  __device__ int32_t EndOfList() const {
    if (!causal() && item_.row < 0) return item_.visible;
    return Visible(item_.row < 0 ? item_.rows - 1 : item_.row);
  }
  // The n-th node that a row of a tree sees.
  __device__ int32_t NodeAt(int32_t row, int32_t n) const {
    const unsigned long long* mask = Mask(row);
    int32_t first = 0;
    for (int32_t here = __popcll(*mask); n >= here; here = __popcll(*mask)) {
      n -= here;
      first += 64;
      ++mask;
    }
    unsigned long long bits = *mask;
    for (; n > 0; --n) bits &= bits - 1;
    return first + __popcll((bits & (~bits + 1)) - 1);
  }

  const SplitCall& call_;
  const SplitHeader header_;
  const SplitItem item_;
  const int32_t kv_head_, group_;
  const int32_t first_line_;
  const int32_t end_;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_TREE_ATTENTION_SPLIT_ITEM_CUH_
