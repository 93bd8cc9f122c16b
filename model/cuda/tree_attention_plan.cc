#include "model/cuda/tree_attention_plan.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace specfabric::model::cuda {
namespace {

constexpr int32_t kInvariantTileQ = 64;
constexpr int32_t kChunkGranule = 256;                // whole steps of every kernel
constexpr int32_t kBlocksAProcessor = 2;              // that fit at the same time
constexpr int64_t kPartialBytes = int64_t{64} << 20;  // of a wave, where the batch does not say

// FlashInfer's rule.
int32_t TileFor(int64_t rows, int64_t sequences, int32_t group) {
  const int64_t average = rows * group / std::max<int64_t>(1, sequences);
  return average > 64 ? 128 : average > 16 ? 64 : 16;
}

// Items that keep the device busy; to cut walks further would only add merging.
int32_t Budget(const TreeAttentionRules& rules) {
  return std::max(1, kBlocksAProcessor * rules.processors / rules.kv_heads);
}

void CutTiles(const Batch& batch, int32_t group, TreeAttentionPlan* plan) {
  const int32_t tile_rows = RowsOf(group, plan->tile_q);
  for (int32_t i : plan->order) {
    const BatchSequence& s = batch.sequences[i];
    for (int32_t first = 0; first < s.row_count; first += tile_rows) {
      AttentionTile tile;
      tile.rows = std::min(tile_rows, s.row_count - first);
      tile.prefix = s.kv_len;
      tile.first_node = s.tree_first + first;
      tile.walk = tile.prefix + tile.first_node + tile.rows;
      tile.first_word = s.causal ? -1 : (s.first_row + first) * batch.mask_words;
      tile.mask_words = batch.mask_words;
      plan->tiles.push_back(tile);
      plan->query_first.push_back(s.first_row + first);
      plan->block_first.push_back(s.first_block);
    }
  }
}

// The shortest chunk with which the device has no more items than it can run at once, and so the
// most of them; the longest walk if there are that many uncut.
int32_t ChooseChunk(const TreeAttentionPlan& plan, int32_t parts, int32_t budget) {
  int32_t longest = 1;
  for (const AttentionTile& tile : plan.tiles) longest = std::max(longest, tile.walk);
  int32_t low = 1, high = static_cast<int32_t>(CeilDivide(longest, kChunkGranule));
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    int64_t items = 0;
    for (const AttentionTile& tile : plan.tiles) {
      items += int64_t{parts} * CeilDivide(tile.walk, int64_t{middle} * kChunkGranule);
    }
    if (items > budget) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low * kChunkGranule;
}

// Cuts the tiles into items, and where results are partial these into waves.
void CutItems(int32_t parts, int32_t max_partial_rows, TreeAttentionPlan* plan) {
  AttentionWave* wave = nullptr;
  for (size_t t = 0; t < plan->tiles.size(); ++t) {
    const AttentionTile& tile = plan->tiles[t];
    const auto chunks = static_cast<int32_t>(CeilDivide(tile.walk, plan->chunk));
    const int32_t partial_rows = tile.rows * chunks;
    if (wave == nullptr ||
        (plan->partial && wave->partial_rows + partial_rows > max_partial_rows)) {
      wave = &plan->waves.emplace_back();
      wave->first_item = static_cast<int32_t>(plan->item_tile.size());
      wave->first_row = plan->query_first[t];
      wave->first_merge = static_cast<int32_t>(plan->merge_first.size());
      if (plan->partial) plan->merge_first.push_back(0);
    }
    plan->output_first.push_back(plan->partial ? wave->partial_rows : plan->query_first[t]);
    for (int32_t part = 0; part < parts; ++part) {
      for (int32_t chunk = 0; chunk < chunks; ++chunk) {
        plan->item_tile.push_back(static_cast<int32_t>(t));
        plan->item_part.push_back(part);
        plan->item_chunk.push_back(chunk);
      }
    }
    wave->items += parts * chunks;
    wave->rows += tile.rows;
    if (!plan->partial) continue;
    for (int32_t row = 0; row < tile.rows; ++row) {
      wave->partial_rows += chunks;
      plan->merge_first.push_back(wave->partial_rows);
    }
  }
}

void Clear(TreeAttentionPlan* plan) {
  plan->tiles.clear();
  for (std::vector<int32_t>* array :
       {&plan->query_first, &plan->output_first, &plan->block_first, &plan->item_tile,
        &plan->item_part, &plan->item_chunk, &plan->merge_first}) {
    array->clear();
  }
  plan->waves.clear();
}

// Where the next array of `count` elements of `bytes` lies.
size_t Take(size_t count, size_t bytes, size_t* end) {
  const size_t begin = (*end + 15) / 16 * 16;
  *end = begin + count * bytes;
  return begin;
}

PlanLayout Lay(size_t tiles, size_t items, size_t merges, size_t words, size_t blocks) {
  PlanLayout at;
  at.tile_count = static_cast<int32_t>(tiles);
  at.item_count = static_cast<int32_t>(items);
  at.chunk = Take(1, sizeof(int32_t), &at.size);
  at.rows = Take(1, sizeof(uint32_t), &at.size);
  at.tiles = Take(tiles, sizeof(AttentionTile), &at.size);
  at.query_first = Take(tiles, sizeof(int32_t), &at.size);
  at.output_first = Take(tiles, sizeof(int32_t), &at.size);
  at.block_first = Take(tiles + 1, sizeof(int32_t), &at.size);
  at.item_tile = Take(items, sizeof(int32_t), &at.size);
  at.item_part = Take(items, sizeof(int32_t), &at.size);
  at.item_chunk = Take(items, sizeof(int32_t), &at.size);
  at.item_valid = Take(items, sizeof(bool), &at.size);
  at.merge_first = Take(merges, sizeof(int32_t), &at.size);
  at.ancestors = Take(words, sizeof(uint64_t), &at.size);
  at.blocks = Take(blocks, sizeof(int32_t), &at.size);  // last: what a batch has not is not copied
  return at;
}

template <typename T>
void Put(const std::vector<T>& values, std::byte* to) {
  if (!values.empty()) std::memcpy(to, values.data(), values.size() * sizeof(T));
}

}  // namespace

absl::StatusOr<TreeAttentionCapacity> CapacityOf(const TreeAttentionRules& rules) {
  if (absl::Status status = CheckRules(rules); !status.ok()) return status;
  const int32_t group = rules.heads / rules.kv_heads;
  const int64_t sequences = std::min(rules.max_sequences, rules.max_rows);
  const int64_t walk = int64_t{rules.max_blocks} * rules.block_size;
  const int64_t budget = Budget(rules);
  const int64_t row_bytes = int64_t{rules.heads} * rules.head_dim * sizeof(float);

  TreeAttentionCapacity capacity;
  std::vector<int32_t> tile_qs = {16, 64, 128};
  if (rules.batch_invariant) tile_qs = {kInvariantTileQ};
  if (rules.fixed_grid && !rules.batch_invariant) {
    tile_qs = {TileFor(rules.max_rows, sequences, group)};
  }
  if (tile_qs.size() == 1) capacity.tile_q = tile_qs[0];

  int64_t tiles = 0, items = 0, partial_rows = 0;
  for (int32_t tile_q : tile_qs) {
    const int64_t rows = RowsOf(group, tile_q), parts = PartsOf(group, tile_q);
    // Every sequence may waste all rows but one of its last tile.
    const int64_t most = (rules.max_rows + sequences * (rows - 1)) / rows;
    tiles = std::max(tiles, most);
    if (rules.batch_invariant) {
      const int64_t chunks = (walk + rules.chunk - 1) / rules.chunk;
      const int64_t all = rules.max_rows * chunks;
      items = most * parts * chunks;
      partial_rows = rules.fixed_grid
                         ? all
                         : std::min(all, std::max(rows * chunks, kPartialBytes / row_bytes));
    } else {
      items = std::max({items, budget, most * parts});
      // Walks are cut only if there are no more items than the budget; in a fixed grid those that
      // are not cut go the same way.
      partial_rows =
          std::max({partial_rows, budget * rows, rules.fixed_grid ? int64_t{rules.max_rows} : 0});
    }
  }
  // The kernel's offsets of queries, outputs, partial results and slots have 32 bits.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const int64_t offsets =
      std::max<int64_t>(rules.max_rows, partial_rows) * rules.heads * rules.head_dim;
  const int64_t slots = rules.max_sequences * walk;
  const int64_t words = int64_t{rules.max_rows} * rules.max_mask_words;
  if (walk > kMost || slots > kMost || offsets > kMost || items > kMost || words > kMost) {
    return RulesError(absl::StrCat("the largest batch has ", slots, " slots, ", items, " items, ",
                                   words, " mask words and ", offsets, " values; allowed: ", kMost,
                                   " of each"));
  }
  capacity.tiles = static_cast<int32_t>(tiles);
  capacity.items = static_cast<int32_t>(items);
  capacity.partial_rows = static_cast<int32_t>(partial_rows);
  capacity.merges = static_cast<int32_t>(rules.max_rows + (rules.fixed_grid ? 1 : tiles));
  return capacity;
}

absl::Status MakeTreeAttentionPlan(const Batch& batch, const TreeAttentionRules& rules,
                                   const TreeAttentionCapacity& capacity, TreeAttentionPlan* plan) {
  Clear(plan);
  if (absl::Status status = CheckBatch(batch, rules, &plan->order); !status.ok()) return status;
  if (std::any_of(batch.sequences.begin(), batch.sequences.end(),
                  [](const BatchSequence& s) { return s.block; })) {
    return RulesError("rows of a block; allowed: of trees and chains");  // walks end at a row's own
  }
  const int32_t group = rules.heads / rules.kv_heads;
  plan->tile_q = capacity.tile_q != 0
                     ? capacity.tile_q
                     : TileFor(batch.rows(), static_cast<int64_t>(plan->order.size()), group);
  const int32_t parts = PartsOf(group, plan->tile_q);
  CutTiles(batch, group, plan);
  plan->chunk = rules.batch_invariant ? rules.chunk : ChooseChunk(*plan, parts, Budget(rules));
  // Also where no walk is cut: in an invariant batch so that a row goes the same way in every one.
  plan->partial = rules.batch_invariant || rules.fixed_grid ||
                  std::any_of(plan->tiles.begin(), plan->tiles.end(),
                              [plan](const auto& tile) { return tile.walk > plan->chunk; });
  CutItems(parts, capacity.partial_rows, plan);
  return absl::OkStatus();
}

PlanLayout LargestLayout(const TreeAttentionRules& rules, const TreeAttentionCapacity& capacity) {
  return Lay(capacity.tiles, capacity.items, capacity.merges,
             size_t(rules.max_rows) * rules.max_mask_words,
             size_t(rules.max_sequences) * rules.max_blocks);
}

PlanLayout LayoutOf(const TreeAttentionPlan& plan, const Batch& batch) {
  return Lay(plan.tiles.size(), plan.item_tile.size(), plan.merge_first.size(),
             batch.ancestors.size(), batch.blocks.size());
}

size_t Pack(const TreeAttentionPlan& plan, const Batch& batch, const PlanLayout& layout,
            std::byte* memory) {
  const uint32_t rows = static_cast<uint32_t>(batch.rows());
  const int32_t blocks = static_cast<int32_t>(batch.blocks.size());
  std::memcpy(memory + layout.chunk, &plan.chunk, sizeof(plan.chunk));
  std::memcpy(memory + layout.rows, &rows, sizeof(rows));
  Put(plan.tiles, memory + layout.tiles);
  Put(plan.query_first, memory + layout.query_first);
  Put(plan.output_first, memory + layout.output_first);
  Put(plan.block_first, memory + layout.block_first);
  std::memcpy(memory + layout.block_first + size_t(layout.tile_count) * sizeof(blocks), &blocks,
              sizeof(blocks));
  Put(plan.item_tile, memory + layout.item_tile);
  Put(plan.item_part, memory + layout.item_part);
  Put(plan.item_chunk, memory + layout.item_chunk);
  static_assert(sizeof(bool) == 1);
  std::memset(memory + layout.item_valid, 0, layout.item_count);
  std::memset(memory + layout.item_valid, 1, plan.item_tile.size());
  Put(plan.merge_first, memory + layout.merge_first);
  Put(batch.ancestors, memory + layout.ancestors);
  Put(batch.blocks, memory + layout.blocks);
  return layout.blocks + batch.blocks.size() * sizeof(int32_t);
}

}  // namespace specfabric::model::cuda
