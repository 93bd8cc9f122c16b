#include "model/cuda/tree_attention_split_plan.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace specfabric::model::cuda {
namespace {

constexpr int32_t kMostTiles = 4;
// Memory for partial results, a processor's share and all; what finds no room there is not cut.
constexpr int64_t kPartialBytesAProcessor = int64_t{512} << 10;
constexpr int64_t kMostPartialBytes = int64_t{64} << 20;
// From this many items for two processors on, lists are walked whole: to cut them would only add
// the time in which a block has begun and nothing has come yet, and folding.
constexpr int64_t kItemsForTwoProcessors = 3;
// Up to so many leaves are walked whole as well: a block takes a microsecond or two for a leaf, and
// for a result that is left in memory and folded by another block some four. Where most processors
// have an item even so, up to kSomeLeaves are.
constexpr int64_t kFewLeaves = 4, kSomeLeaves = 16;
// Rows of trees with few leaves are walked one by one, each with all its leaves, while these are no
// more blocks for a processor: beyond that, reading shared leaves once takes less time.
constexpr int64_t kTreeRowsAProcessor = 4;

int32_t TilesOfLines(int64_t lines) {
  return lines <= kTileLines ? 1 : lines <= 2 * kTileLines ? 2 : kMostTiles;
}

// Of a tree, that a row sees.
int32_t NodesSeen(const Batch& batch, const BatchSequence& s, int32_t row) {
  const uint64_t* words = &batch.ancestors[size_t(s.first_row + row) * batch.mask_words];
  int32_t seen = 0;
  for (int32_t w = 0; w < batch.mask_words; ++w) seen += std::popcount(words[w]);
  return seen;
}

// Whether a tree's rows see all nodes before them, as causal rows do.
bool IsChain(const Batch& batch, const BatchSequence& s) {
  for (int32_t i = 0; i < s.row_count; ++i) {
    // Its own is the last that it sees.
    if (NodesSeen(batch, s, i) != s.tree_first + i + 1) return false;
  }
  return true;
}

class Planner {
 public:
  Planner(const Batch& batch, const TreeAttentionRules& rules, const SplitCapacity& capacity,
          SplitPlan* plan)
      : batch_(batch),
        rules_(rules),
        capacity_(capacity),
        plan_(*plan),
        group_(rules.heads / rules.kv_heads),
        parts_(PartsOf(group_, kTileLines * plan->tiles)) {}

  void Run() {
    ChooseTileRows();
    ChoosePieces();
    for (int32_t i : plan_.order) {
      const BatchSequence& s = batch_.sequences[i];
      const bool causal = s.causal || IsChain(batch_, s);
      for (int32_t first = 0; first < s.row_count; first += tile_rows_) {
        const int32_t rows = std::min(tile_rows_, s.row_count - first);
        if (causal) {
          AddCausal(s, first, rows);
        } else if (tree_rows_) {
          for (int32_t r = first; r < first + rows; ++r) AddTreeRow(s, r);
        } else {
          AddTree(s, first, rows);
        }
      }
    }
  }

 private:
  // Blocks for all tiles of so many lines, if each is walked whole.
  int64_t BlocksFor(int32_t lines) const {
    int64_t tiles = 0;
    for (int32_t i : plan_.order) {
      tiles += CeilDivide(batch_.sequences[i].row_count, RowsOf(group_, lines));
    }
    return tiles * parts_ * rules_.kv_heads;
  }

  // Tiles smaller than a block may have where that gives more processors work, as keys and values
  // come from the cache for all but the first; but no row is parted for that.
  void ChooseTileRows() {
    int32_t lines = kTileLines * plan_.tiles;
    while (lines > kTileLines && lines / 2 >= group_ && BlocksFor(lines) < rules_.processors) {
      lines /= 2;
    }
    tile_rows_ = RowsOf(group_, lines);
  }

  // Single leaves where whole chunks would leave processors without work.
  void ChoosePieces() {
    int64_t tiles = 0, chunks = 0, most_leaves = 0, rows = 0;
    for (int32_t i : plan_.order) {
      const BatchSequence& s = batch_.sequences[i];
      const int64_t of_sequence = CeilDivide(s.row_count, tile_rows_);
      const int64_t slots = int64_t{s.kv_len} + s.tree_first + s.row_count;
      tiles += of_sequence;
      chunks += of_sequence * CeilDivide(slots, kLeafSlots * kChunkLeaves);
      most_leaves = std::max(most_leaves, CeilDivide(slots, kLeafSlots));
      rows += s.row_count;
    }
    const int64_t blocks = int64_t{parts_} * rules_.kv_heads;
    piece_leaves_ = chunks * blocks < rules_.processors ? 1 : kChunkLeaves;
    const int64_t items = tiles * blocks;
    walk_whole_ = most_leaves <= kFewLeaves ||
                  (most_leaves <= kSomeLeaves && 4 * items >= 3 * rules_.processors) ||
                  2 * items >= kItemsForTwoProcessors * rules_.processors;
    tree_rows_ =
        most_leaves <= kFewLeaves && rows * blocks <= kTreeRowsAProcessor * rules_.processors;
  }

  // Whether there is room for partial results; then it is taken.
  bool Take(int64_t partial_rows, SplitItem* tile) {
    if (used_partials_ + partial_rows > capacity_.partial_rows) return false;
    tile->first_partial = static_cast<int32_t>(used_partials_);
    used_partials_ += partial_rows;
    return true;
  }

  SplitItem TileOf(const BatchSequence& s, int32_t first, int32_t rows) const {
    SplitItem tile;
    tile.first_row = s.first_row + first;
    tile.rows = rows;
    tile.first_block = s.first_block;
    tile.first_word = tile.first_row * batch_.mask_words;
    tile.visible = s.kv_len;
    tile.items = 1;
    return tile;
  }

  void AddCausal(const BatchSequence& s, int32_t first, int32_t rows) {
    SplitItem tile = TileOf(s, first, rows);
    tile.first_word = -1;
    tile.visible = s.kv_len + s.tree_first + first + 1;
    tile.shared_leaves = LeavesOf(tile.visible + rows - 1);
    SetPieces(walk_whole_ ? tile.shared_leaves : piece_leaves_, &tile);
    if (tile.pieces > 1 && !Take(int64_t{tile.pieces} * rows, &tile)) {
      SetPieces(tile.shared_leaves, &tile);
    }
    tile.items = tile.pieces;
    AddShared(&tile);
    if (tile.items > 1) ++used_counters_;
  }

  void AddTree(const BatchSequence& s, int32_t first, int32_t rows) {
    SplitItem tile = TileOf(s, first, rows);
    tile.shared_leaves = s.kv_len / kLeafSlots;
    int32_t most = 0, tails = 0;
    for (int32_t r = 0; r < rows; ++r) {
      const int32_t tail = LeavesOf(VisibleTo(s, first + r)) - tile.shared_leaves;
      most = std::max(most, tail);
      tails += tail;
    }
    if (walk_whole_ && tile.shared_leaves > 0) {
      SetPieces(tile.shared_leaves, &tile);
      tile.leaves = tile.shared_leaves + tails;
      AddWhole(&tile);
      return;
    }
    SetPieces(piece_leaves_, &tile);
    tile.items = tile.pieces + tails;
    if (tile.shared_leaves == 0 || !Take(int64_t{tile.pieces + most} * rows, &tile)) {
      for (int32_t r = 0; r < rows; ++r) AddTreeRow(s, first + r);
      return;
    }
    AddShared(&tile);
    for (tile.row = 0; tile.row < rows; ++tile.row) AddTail(s, first + tile.row, &tile);
    ++used_counters_;
  }

  // All rows' lists, by one item.
  void AddWhole(SplitItem* tile) {
    tile->row = kSharedLeavesAndTails;
    tile->items = 1;
    Add(tile);
  }

  // A row of a tree by itself, whose list is walked whole.
  void AddTreeRow(const BatchSequence& s, int32_t row) {
    SplitItem tile = TileOf(s, row, 1);
    tile.leaves = LeavesOf(VisibleTo(s, row));
    Add(&tile);
  }

  void AddShared(SplitItem* tile) {
    tile->row = kSharedLeaves;
    for (tile->piece = 0; tile->piece < tile->pieces; ++tile->piece) {
      tile->first_leaf = tile->piece * tile->piece_leaves;
      tile->leaves = std::min(tile->piece_leaves, tile->shared_leaves - tile->first_leaf);
      Add(tile);
    }
  }

  void AddTail(const BatchSequence& s, int32_t row, SplitItem* tile) {
    const int32_t end = LeavesOf(VisibleTo(s, row));
    tile->leaves = 1;
    tile->piece = tile->pieces;
    for (tile->first_leaf = tile->shared_leaves; tile->first_leaf < end; ++tile->first_leaf) {
      Add(tile);
      ++tile->piece;
    }
  }

  void Add(SplitItem* item) {
    item->counter = used_counters_ * parts_;
    for (item->part = 0; item->part < parts_; ++item->part) plan_.items.push_back(*item);
  }

  static void SetPieces(int32_t leaves, SplitItem* tile) {
    tile->piece_leaves = leaves;
    tile->pieces = leaves == 0 ? 0 : static_cast<int32_t>(CeilDivide(tile->shared_leaves, leaves));
  }
  static int32_t LeavesOf(int32_t slots) {
    return static_cast<int32_t>(CeilDivide(slots, kLeafSlots));
  }
  // Slots of the list of a tree's row.
  int32_t VisibleTo(const BatchSequence& s, int32_t row) const {
    return s.kv_len + NodesSeen(batch_, s, row);
  }

  const Batch& batch_;
  const TreeAttentionRules& rules_;
  const SplitCapacity& capacity_;
  SplitPlan& plan_;
  const int32_t group_, parts_;
  int32_t tile_rows_ = 1;
  int32_t piece_leaves_ = 1;
  bool walk_whole_ = false;
  bool tree_rows_ = false;  // rows of trees are items by themselves
  int64_t used_partials_ = 0;
  int32_t used_counters_ = 0;  // each of a tile's parts
};

template <typename T>
uint32_t Append(const std::vector<T>& values, std::byte* memory, size_t* end) {
  const size_t begin = (*end + 15) / 16 * 16;
  if (!values.empty()) std::memcpy(memory + begin, values.data(), values.size() * sizeof(T));
  *end = begin + values.size() * sizeof(T);
  return static_cast<uint32_t>(begin);
}

}  // namespace

absl::StatusOr<SplitCapacity> SplitCapacityOf(const TreeAttentionRules& rules) {
  if (absl::Status status = CheckRules(rules); !status.ok()) return status;
  const int64_t group = rules.heads / rules.kv_heads, rows = rules.max_rows;
  const int64_t slots = int64_t{rules.max_blocks} * rules.block_size;
  const int64_t row_bytes = int64_t{rules.heads} * rules.head_dim * sizeof(float);
  const int64_t partial_rows = CeilDivide(
      std::min(kPartialBytesAProcessor * rules.processors, kMostPartialBytes), row_bytes);
  const int64_t parts = PartsOf(static_cast<int32_t>(group), kTileLines);
  // A leaf a piece, and of a tree's row as many more as its own nodes and a leaf's rest fill.
  const int64_t pieces = CeilDivide(slots, kLeafSlots) + rules.max_mask_words + 1;
  // Each item has a row for itself, or a partial one.
  const int64_t items = parts * (rows + std::min(rows * pieces, partial_rows));
  const int64_t words = rows * rules.max_mask_words;
  const int64_t blocks = rules.max_sequences * int64_t{rules.max_blocks};
  const int64_t bytes = static_cast<int64_t>(sizeof(SplitHeader)) +
                        items * static_cast<int64_t>(sizeof(SplitItem)) +
                        words * static_cast<int64_t>(sizeof(uint64_t)) +
                        blocks * static_cast<int64_t>(sizeof(int32_t)) + 2 * 16;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (slots > kMost || bytes > kMost) {
    return RulesError(absl::StrCat("the largest batch has ", slots,
                                   " slots a sequence, in a plan of ", bytes,
                                   " bytes; allowed: ", kMost, " of each"));
  }
  SplitCapacity capacity;
  capacity.tiles = rules.fixed_grid ? TilesOfLines(rows * group) : 0;
  capacity.items = static_cast<int32_t>(items);
  capacity.partial_rows = static_cast<int32_t>(partial_rows);
  capacity.counters =
      static_cast<int32_t>((partial_rows / 2 + 1) * parts);  // of two pieces or more
  capacity.plan_bytes = static_cast<size_t>(bytes);
  return capacity;
}

absl::Status MakeSplitPlan(const Batch& batch, const TreeAttentionRules& rules,
                           const SplitCapacity& capacity, SplitPlan* plan) {
  plan->items.clear();
  if (absl::Status status = CheckBatch(batch, rules, &plan->order); !status.ok()) return status;
  int32_t widest = 0;
  for (int32_t i : plan->order) widest = std::max(widest, batch.sequences[i].row_count);
  const int64_t group = rules.heads / rules.kv_heads;
  plan->tiles = capacity.tiles != 0 ? capacity.tiles : TilesOfLines(widest * group);
  Planner(batch, rules, capacity, plan).Run();
  return absl::OkStatus();
}

size_t PackSplitPlan(const SplitPlan& plan, const Batch& batch, std::byte* memory) {
  size_t end = sizeof(SplitHeader);
  SplitHeader header;
  header.items = static_cast<int32_t>(plan.items.size());
  header.mask_words = batch.mask_words;
  Append(plan.items, memory, &end);
  header.ancestors = Append(batch.ancestors, memory, &end);
  header.blocks = Append(batch.blocks, memory, &end);
  std::memcpy(memory, &header, sizeof(header));
  return end;
}

}  // namespace specfabric::model::cuda
