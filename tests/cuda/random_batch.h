#ifndef SPECFABRIC_TESTS_CUDA_RANDOM_BATCH_H_
#define SPECFABRIC_TESTS_CUDA_RANDOM_BATCH_H_

// Batches of prefill chunks, single tokens and trees, for tests of attention.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "model/batch.h"
#include "model/cuda/tree_attention_rules.h"

namespace specfabric::model::cuda {

struct BatchForm {
  int32_t sequences = 8;
  int32_t block_size = 16;
  int32_t blocks = 4096;  // of the cache
  int32_t mask_words = 1;
  int32_t max_kv = 500;
  int32_t max_prefill = 60;  // rows; 0: no prefill chunks
  int32_t max_tree = 64;     // rows; 0: no trees
};

// The masks of a tree whose nodes' parents come before them, some of them roots: [nodes][words].
inline std::vector<uint64_t> RandomMasks(std::mt19937& rng, int32_t nodes, int32_t words) {
  std::vector<uint64_t> masks(size_t(nodes) * words);
  for (int32_t node = 0; node < nodes; ++node) {
    const int32_t parent = static_cast<int32_t>(rng() % (node + 1)) - 1;
    uint64_t* own = &masks[size_t(node) * words];
    if (parent >= 0) std::copy_n(&masks[size_t(parent) * words], words, own);
    own[node / 64] |= uint64_t{1} << (node % 64);
  }
  return masks;
}

// Makes blocks, whose rows all see each other, of the trees that begin with the batch's rows.
inline void MakeBlocks(Batch* batch) {
  for (BatchSequence& s : batch->sequences) {
    if (s.causal || s.tree_first > 0) continue;
    s.block = true;
    for (int32_t i = 0; i < s.row_count * s.row_count; ++i) {
      const int32_t row = s.first_row + i / s.row_count, node = i % s.row_count;
      batch->ancestors[size_t(row) * batch->mask_words + node / 64] |= uint64_t{1} << (node % 64);
    }
  }
}

inline Batch RandomBatch(std::mt19937& rng, const BatchForm& form) {
  const auto up_to = [&rng](int32_t most) { return static_cast<int32_t>(rng() % (most + 1)); };
  std::vector<int32_t> free(form.blocks);
  std::iota(free.begin(), free.end(), 0);
  std::shuffle(free.begin(), free.end(), rng);
  Batch batch;
  batch.mask_words = form.mask_words;
  for (int32_t i = 0; i < form.sequences; ++i) {
    BatchSequence s;
    const int32_t kind = up_to(2);
    s.kv_len = up_to(form.max_kv);
    s.first_row = batch.rows();
    s.row_count = 1;
    std::vector<uint64_t> masks;
    if (kind == 0 && form.max_prefill > 0) {
      s.row_count += up_to(form.max_prefill - 1);
    } else if (kind == 1 && form.max_tree > 0) {
      s.causal = false;
      s.row_count += up_to(form.max_tree - 1);
      s.tree_first = up_to(form.mask_words * 64 - s.row_count);
      if (up_to(1) == 0) s.tree_first = 0;
      masks = RandomMasks(rng, s.tree_first + s.row_count, form.mask_words);
      masks.erase(masks.begin(), masks.begin() + size_t(s.tree_first) * form.mask_words);
    }
    masks.resize(size_t(s.row_count) * form.mask_words);
    batch.ancestors.insert(batch.ancestors.end(), masks.begin(), masks.end());
    batch.tokens.resize(batch.tokens.size() + s.row_count);
    const int32_t slots = s.kv_len + s.tree_first + s.row_count;
    s.first_block = static_cast<int32_t>(batch.blocks.size());
    s.block_count = (slots + form.block_size - 1) / form.block_size + up_to(1);
    batch.blocks.insert(batch.blocks.end(), free.end() - s.block_count, free.end());
    free.resize(free.size() - s.block_count);
    batch.sequences.push_back(s);
  }
  batch.positions.resize(batch.tokens.size());
  std::shuffle(batch.sequences.begin(), batch.sequences.end(), rng);
  return batch;
}

// Limits that a batch of this form keeps to.
inline TreeAttentionRules RulesFor(const BatchForm& form, int32_t heads, int32_t kv_heads,
                                   int32_t processors = 132) {
  return {.heads = heads,
          .kv_heads = kv_heads,
          .head_dim = 64,
          .blocks = form.blocks,
          .block_size = form.block_size,
          .max_rows = form.sequences * std::max({form.max_prefill, form.max_tree, 1}),
          .max_sequences = form.sequences,
          .max_blocks = (form.max_kv + 320) / form.block_size + 2,
          .max_mask_words = form.mask_words,
          .processors = processors};
}

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_TESTS_CUDA_RANDOM_BATCH_H_
