#include "model/attention_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace specfabric::model {
namespace {

absl::Status Error(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("batch: ", what));
}

absl::Status CheckRows(const Batch& batch, const BatchLimits& limits) {
  const size_t rows = batch.tokens.size();
  if (batch.positions.size() != rows) {
    return Error(absl::StrCat(batch.positions.size(), " positions for ", rows, " rows"));
  }
  if (batch.mask_words < 1 ||
      (!batch.ancestors.empty() && batch.ancestors.size() != rows * batch.mask_words)) {
    return Error(absl::StrCat(batch.ancestors.size(), " mask words for ", rows, " rows of ",
                              batch.mask_words));
  }
  for (size_t i = 0; i < rows; ++i) {
    if (batch.tokens[i] < 0 || batch.tokens[i] >= limits.vocabulary) {
      return Error(absl::StrCat("row ", i, " has token ", batch.tokens[i], "; allowed: 0 to ",
                                limits.vocabulary - 1));
    }
    if (batch.positions[i] < 0) {
      return Error(absl::StrCat("row ", i, " has position ", batch.positions[i]));
    }
  }
  for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
    const int32_t row = batch.logit_rows[i];
    if (row < 0 || row >= batch.rows() || (i > 0 && row <= batch.logit_rows[i - 1])) {
      return Error(
          absl::StrCat("logit_rows must ascend from 0 to ", batch.rows() - 1, ", but holds ", row));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSequence(const Batch& batch, const BatchLimits& limits, const BatchSequence& s) {
  if (s.kv_len < 0 || s.tree_first < 0 || s.row_count < 0 || s.first_row < 0 ||
      s.first_row > batch.rows() - s.row_count) {
    return Error(absl::StrCat("a sequence has rows ", s.first_row, " + ", s.row_count, ", kv_len ",
                              s.kv_len, " and tree_first ", s.tree_first));
  }
  if (s.first_block < 0 || s.block_count < 0 ||
      s.first_block > static_cast<int64_t>(batch.blocks.size()) - s.block_count) {
    return Error(absl::StrCat("a sequence has blocks ", s.first_block, " + ", s.block_count, " of ",
                              batch.blocks.size()));
  }
  const int64_t needed = int64_t{s.kv_len} + s.tree_first + s.row_count;
  if (needed > int64_t{s.block_count} * limits.block_size) {
    return Error(absl::StrCat("a sequence needs ", needed, " slots, but its ", s.block_count,
                              " blocks hold ", int64_t{s.block_count} * limits.block_size));
  }
  for (int32_t i = 0; i < s.block_count; ++i) {
    const int32_t block = batch.blocks[s.first_block + i];
    if (block < 0 || block >= limits.blocks) {
      return Error(absl::StrCat("block ", block, "; allowed: 0 to ", limits.blocks - 1));
    }
  }
  if (s.causal || s.block) return absl::OkStatus();
  if (batch.ancestors.empty()) return Error("a tree without ancestor masks");
  if (s.tree_first + s.row_count > batch.mask_words * 64) {
    return Error(absl::StrCat("a tree of ", s.tree_first + s.row_count,
                              " nodes; allowed: ", batch.mask_words * 64));
  }
  return absl::OkStatus();
}

// Appends the physical slots of a sequence, by logical slot.
void AppendSlots(const Batch& batch, const BatchLimits& limits, const BatchSequence& s,
                 std::vector<int32_t>* slots) {
  const int32_t count = s.kv_len + s.tree_first + s.row_count;
  for (int32_t done = 0, block = s.first_block; done < count; ++block) {
    const int32_t base = batch.blocks[block] * limits.block_size;
    const int32_t here = std::min(limits.block_size, count - done);
    for (int32_t i = 0; i < here; ++i) slots->push_back(base + i);
    done += here;
  }
}

// Appends the slots of the row's ancestors and itself, root first.
absl::Status AppendAncestors(const Batch& batch, int32_t row, int32_t node,
                             const int32_t* tree_slots, std::vector<int32_t>* extra) {
  const uint64_t* words = &batch.ancestors[static_cast<size_t>(row) * batch.mask_words];
  int32_t last = -1;
  for (int32_t w = 0; w < batch.mask_words; ++w) {
    for (uint64_t bits = words[w]; bits != 0; bits &= bits - 1) {
      last = w * 64 + __builtin_ctzll(bits);
      if (last > node) {
        return Error(absl::StrCat("node ", node, " has ancestor ", last, ", which comes after it"));
      }
      extra->push_back(tree_slots[last]);
    }
  }
  if (last != node) return Error(absl::StrCat("node ", node, " does not see itself"));
  return absl::OkStatus();
}

}  // namespace

absl::Status MakeAttentionPlan(const Batch& batch, const BatchLimits& limits, AttentionPlan* plan) {
  plan->slots.clear();
  // Enough unless sequences share blocks: no pass has to make room as texts grow.
  plan->slots.reserve(static_cast<size_t>(limits.blocks) * limits.block_size);
  plan->extra.clear();
  plan->rows.assign(batch.tokens.size(), RowView{});
  plan->max_visible = 0;
  if (absl::Status status = CheckRows(batch, limits); !status.ok()) return status;

  for (const BatchSequence& s : batch.sequences) {
    if (absl::Status status = CheckSequence(batch, limits, s); !status.ok()) return status;
    const int32_t first_slot = static_cast<int32_t>(plan->slots.size());
    AppendSlots(batch, limits, s, &plan->slots);
    for (int32_t i = 0; i < s.row_count; ++i) {
      RowView& view = plan->rows[s.first_row + i];
      if (view.run_count + view.extra_count > 0) {
        return Error(absl::StrCat("row ", s.first_row + i, " is in two sequences"));
      }
      const int32_t node = s.tree_first + i;
      view.write_slot = plan->slots[first_slot + s.kv_len + node];
      view.run_first = first_slot;
      if (s.block) {
        view.run_count = s.kv_len + s.tree_first + s.row_count;
      } else if (s.causal) {
        view.run_count = s.kv_len + node + 1;
      } else {
        view.run_count = s.kv_len;
        view.extra_first = static_cast<int32_t>(plan->extra.size());
        absl::Status status = AppendAncestors(batch, s.first_row + i, node,
                                              &plan->slots[first_slot + s.kv_len], &plan->extra);
        if (!status.ok()) return status;
        view.extra_count = static_cast<int32_t>(plan->extra.size()) - view.extra_first;
      }
      plan->max_visible = std::max(plan->max_visible, view.visible());
    }
  }
  for (size_t row = 0; row < plan->rows.size(); ++row) {
    if (plan->rows[row].visible() == 0)
      return Error(absl::StrCat("row ", row, " is in no sequence"));
  }
  return absl::OkStatus();
}

void LimitPlan(const Batch& batch, const AttentionLimits& limits, const AttentionPlan& whole,
               AttentionPlan* limited) {
  *limited = whole;
  limited->max_visible = 0;
  for (const BatchSequence& s : batch.sequences) {
    for (int32_t i = 0; i < s.row_count; ++i) {
      RowView& view = limited->rows[s.first_row + i];
      // The row's place among the slots that it sees, as if they were all of its sequence.
      const int32_t own = s.block ? s.kv_len + s.tree_first + i : view.visible() - 1;
      if (s.block && limits.causal_blocks) view.run_count = own + 1;
      if (limits.window > 0) {
        view.run_count = std::min(view.run_count, own + limits.window);
        const int32_t unseen = std::max(0, own + 1 - limits.window);
        const int32_t of_run = std::min(unseen, view.run_count);
        view.run_first += of_run;
        view.run_count -= of_run;
        view.extra_first += unseen - of_run;
        view.extra_count -= unseen - of_run;
      }
      limited->max_visible = std::max(limited->max_visible, view.visible());
    }
  }
}

}  // namespace specfabric::model
