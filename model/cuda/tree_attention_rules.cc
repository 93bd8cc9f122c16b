#include "model/cuda/tree_attention_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace specfabric::model::cuda {

absl::Status RulesError(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("tree attention: ", what));
}

absl::Status CheckRules(const TreeAttentionRules& r) {
  if (r.kv_heads < 1 || r.kv_heads > 65535 || r.heads < 1 || r.heads % r.kv_heads != 0) {
    return RulesError(absl::StrCat(r.heads, " heads over ", r.kv_heads,
                                   " KV heads; allowed: a multiple of 1 to 65535"));
  }
  if (r.head_dim != 64 && r.head_dim != 128) {
    return RulesError(absl::StrCat("head size ", r.head_dim, "; allowed: 64 and 128"));
  }
  if (r.blocks < 1 || r.block_size < 1 || r.max_rows < 1 || r.max_sequences < 1 ||
      r.max_blocks < 1 || r.max_mask_words < 1 || r.processors < 1) {
    return RulesError(absl::StrCat(
        r.blocks, " blocks of ", r.block_size, " slots, limits of ", r.max_rows, " rows, ",
        r.max_sequences, " sequences, ", r.max_blocks, " blocks a sequence and ", r.max_mask_words,
        " mask words on ", r.processors, " processors; allowed: 1 and more"));
  }
  constexpr int32_t kStep = 128;  // slots that FlashInfer's thread block of 64 lines takes at once
  if (r.batch_invariant && (r.chunk < kStep || r.chunk % kStep != 0)) {
    return RulesError(absl::StrCat("chunks of ", r.chunk, " slots; allowed: multiples of ", kStep));
  }
  return absl::OkStatus();
}

namespace {

absl::Status BatchError(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("batch: ", what));
}

// The highest bit of a row's mask must be its own: what lies behind is not walked.
absl::Status CheckMask(const Batch& batch, const BatchSequence& s, int32_t i) {
  const int32_t node = s.tree_first + i;
  const uint64_t* words = &batch.ancestors[size_t(s.first_row + i) * batch.mask_words];
  int32_t last = -1;
  for (int32_t w = batch.mask_words - 1; w >= 0 && last < 0; --w) {
    if (words[w] != 0) last = w * 64 + 63 - __builtin_clzll(words[w]);
  }
  if (last == node) return absl::OkStatus();
  return BatchError(absl::StrCat("row ", s.first_row + i, " is node ", node,
                                 ", but the last that it", " sees is ", last, "; allowed: itself"));
}

absl::Status CheckSequence(const Batch& batch, const TreeAttentionRules& rules,
                           const BatchSequence& s) {
  if (s.kv_len < 0 || s.tree_first < 0 || s.row_count < 0 || s.first_row < 0 ||
      s.first_row > batch.rows() - s.row_count || s.first_block < 0 || s.block_count < 0 ||
      s.first_block > static_cast<int64_t>(batch.blocks.size()) - s.block_count) {
    return BatchError(absl::StrCat("a sequence has rows ", s.first_row, " + ", s.row_count, " of ",
                                   batch.rows(), ", blocks ", s.first_block, " + ", s.block_count,
                                   " of ", batch.blocks.size(), ", kv_len ", s.kv_len,
                                   " and tree_first ", s.tree_first));
  }
  const int64_t slots = int64_t{s.kv_len} + s.tree_first + s.row_count;
  const int64_t room = int64_t{std::min(s.block_count, rules.max_blocks)} * rules.block_size;
  if (slots > room) {
    return BatchError(absl::StrCat("a sequence needs ", slots, " slots; allowed: ", room, " in ",
                                   s.block_count, " blocks, of which ", rules.max_blocks,
                                   " at most"));
  }
  if (s.block && s.causal) return BatchError("a block of rows without masks");
  if (s.causal) return absl::OkStatus();
  if (s.tree_first + s.row_count > batch.mask_words * 64) {
    return BatchError(absl::StrCat("a tree of ", s.tree_first + s.row_count,
                                   " nodes; allowed: ", batch.mask_words * 64));
  }
  for (int32_t i = 0; !s.block && i < s.row_count; ++i) {
    if (absl::Status status = CheckMask(batch, s, i); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckLimits(const Batch& batch, const TreeAttentionRules& rules) {
  if (batch.rows() > rules.max_rows) {
    return BatchError(absl::StrCat(batch.rows(), " rows; allowed: ", rules.max_rows));
  }
  const int64_t max_blocks = int64_t{rules.max_sequences} * rules.max_blocks;
  if (static_cast<int64_t>(batch.blocks.size()) > max_blocks) {
    return BatchError(absl::StrCat(batch.blocks.size(), " blocks; allowed: ", max_blocks));
  }
  for (int32_t block : batch.blocks) {
    if (block < 0 || block >= rules.blocks) {
      return BatchError(absl::StrCat("block ", block, "; allowed: 0 to ", rules.blocks - 1));
    }
  }
  if (batch.mask_words < 1 || batch.mask_words > rules.max_mask_words) {
    return BatchError(
        absl::StrCat(batch.mask_words, " mask words a row; allowed: 1 to ", rules.max_mask_words));
  }
  const bool trees =
      std::any_of(batch.sequences.begin(), batch.sequences.end(),
                  [](const BatchSequence& s) { return !s.causal && s.row_count > 0; });
  const size_t words = size_t(batch.rows()) * batch.mask_words;
  if (batch.ancestors.size() != words && (trees || !batch.ancestors.empty())) {
    return BatchError(absl::StrCat(batch.ancestors.size(), " mask words for ", batch.rows(),
                                   " rows; allowed: ", words));
  }
  return absl::OkStatus();
}

// Sequences in the order of their rows, which must be all of the batch's, each in one of them.
absl::Status OrderSequences(const Batch& batch, const TreeAttentionRules& rules,
                            std::vector<int32_t>* order) {
  order->clear();
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const BatchSequence& s = batch.sequences[i];
    if (absl::Status status = CheckSequence(batch, rules, s); !status.ok()) return status;
    if (s.row_count > 0) order->push_back(static_cast<int32_t>(i));
  }
  if (static_cast<int64_t>(order->size()) > rules.max_sequences) {
    return BatchError(
        absl::StrCat(order->size(), " sequences with rows; allowed: ", rules.max_sequences));
  }
  std::sort(order->begin(), order->end(), [&batch](int32_t a, int32_t b) {
    return batch.sequences[a].first_row < batch.sequences[b].first_row;
  });
  int32_t next = 0;
  for (int32_t i : *order) {
    const BatchSequence& s = batch.sequences[i];
    if (s.first_row != next) {
      return BatchError(absl::StrCat("row ", std::min(next, s.first_row),
                                     next < s.first_row ? " is in no sequence" : " is in two"));
    }
    next += s.row_count;
  }
  if (next == batch.rows()) return absl::OkStatus();
  return BatchError(absl::StrCat("row ", next, " is in no sequence"));
}

}  // namespace

absl::Status CheckBatch(const Batch& batch, const TreeAttentionRules& rules,
                        std::vector<int32_t>* order) {
  if (absl::Status status = CheckLimits(batch, rules); !status.ok()) return status;
  return OrderSequences(batch, rules, order);
}

}  // namespace specfabric::model::cuda
