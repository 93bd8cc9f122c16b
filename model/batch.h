#ifndef SPECFABRIC_MODEL_BATCH_H_
#define SPECFABRIC_MODEL_BATCH_H_

// The input of one forward pass: rows of many sequences at once (prefill chunks, single tokens,
// token trees). Plain host arrays; every rank gets the same batch.

#include <cstdint>
#include <vector>

#include "base/types.h"

namespace specfabric::model {

// One sequence's rows. Its KV slots are numbered 0, 1, ... and lie in its blocks in order: slot s
// is physical slot blocks[s / block_size] * block_size + s % block_size.
//
// Row i writes slot kv_len + tree_first + i before attention is computed. Every row attends to
// slots [0, kv_len). Beyond those, a causal row i attends to slots kv_len .. kv_len + i, and a tree
// row to slot kv_len + j for every bit j set in its ancestor mask (its own bit included).
struct BatchSequence {
  int32_t kv_len = 0;
  int32_t tree_first = 0;  // rows of this tree already written by earlier steps (draft growth)
  int32_t first_row = 0;
  int32_t row_count = 0;
  int32_t first_block = 0;  // into Batch::blocks
  int32_t block_count = 0;
  bool causal = true;  // false: ancestor masks apply
  // Rows of a block drafter (StateDrafter::block), which all see each other, unless the layer is
  // one of its causal ones. `causal` does not count then.
  bool block = false;
};

struct Batch {
  std::vector<base::TokenId> tokens;  // [rows]
  std::vector<int32_t> positions;     // [rows] rotary positions
  std::vector<uint64_t> ancestors;    // [rows][mask_words]; ignored for causal sequences; may be
                                      // empty if all are causal
  int32_t mask_words = 1;             // 1 on a target (64 nodes), 4 on a draft (256)
  std::vector<BatchSequence> sequences;
  std::vector<int32_t> blocks;
  std::vector<int32_t> logit_rows;  // ascending rows whose logits are wanted
  // [rows][hidden], for drafters that read hidden states (ModelConfig::states), else empty: beside
  // the token of each row the fused state of the position before it (RankModel::FuseStates), or, of
  // a drafted token, the state that its parent's row handed on (RankModel::next_states). Of a block
  // drafter only RankModel::WriteContext reads them.
  std::vector<float> states;

  int rows() const { return static_cast<int>(tokens.size()); }
};

// Copies K and V of one physical slot to another, on every layer of this rank.
struct KvMove {
  int32_t from = 0;
  int32_t to = 0;
};

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_BATCH_H_
