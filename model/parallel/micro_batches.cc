#include "model/parallel/micro_batches.h"

#include <algorithm>
#include <cstddef>

namespace specfabric::model {
namespace {

// A run of one sequence's rows.
struct Piece {
  const BatchSequence* sequence;
  int32_t first = 0, count = 0;  // within the sequence
};

// The rows of the batch in pieces that nothing cuts further, in the order of their rows.
std::vector<BatchSequence> InOrder(const Batch& batch) {
  std::vector<BatchSequence> sequences = batch.sequences;
  std::sort(sequences.begin(), sequences.end(),
            [](const auto& a, const auto& b) { return a.first_row < b.first_row; });
  return sequences;
}

// Adds the piece, whose rows follow those that `part` has.
void Append(const Batch& batch, const Piece& piece, Batch* part) {
  const BatchSequence& from = *piece.sequence;
  BatchSequence to = from;
  to.first_row = part->rows();
  to.row_count = piece.count;
  to.first_block = static_cast<int32_t>(part->blocks.size());
  // A later piece of a chain finds the slots of the ones before it written.
  to.kv_len = from.kv_len + piece.first;
  const auto blocks = batch.blocks.begin() + from.first_block;
  part->blocks.insert(part->blocks.end(), blocks, blocks + from.block_count);
  const size_t first = from.first_row + piece.first, end = first + piece.count;
  part->tokens.insert(part->tokens.end(), batch.tokens.begin() + first, batch.tokens.begin() + end);
  part->positions.insert(part->positions.end(), batch.positions.begin() + first,
                         batch.positions.begin() + end);
  if (!batch.ancestors.empty()) {
    const size_t words = batch.mask_words;
    part->ancestors.insert(part->ancestors.end(), batch.ancestors.begin() + first * words,
                           batch.ancestors.begin() + end * words);
  }
  part->sequences.push_back(to);
}

// Deals out the logit rows, which ascend as the parts' rows do.
void AssignLogitRows(const Batch& batch, std::vector<Batch>* parts) {
  auto row = batch.logit_rows.begin();
  int32_t first = 0;
  for (Batch& part : *parts) {
    for (; row != batch.logit_rows.end() && *row < first + part.rows(); ++row) {
      part.logit_rows.push_back(*row - first);
    }
    first += part.rows();
  }
}

}  // namespace

std::vector<Batch> SplitBatch(const Batch& batch, int max_parts, int min_rows) {
  const int count = std::clamp(batch.rows() / min_rows, 1, max_parts);
  if (count == 1) return {batch};
  // Rounded up, so that there are never more than `count`.
  const int share = (batch.rows() + count - 1) / count;
  std::vector<Batch> parts(1);
  parts.back().mask_words = batch.mask_words;
  const std::vector<BatchSequence> sequences = InOrder(batch);
  for (const BatchSequence& sequence : sequences) {
    for (int32_t done = 0; done < sequence.row_count;) {
      if (parts.back().rows() >= share) {
        parts.emplace_back();
        parts.back().mask_words = batch.mask_words;
      }
      const int32_t left = sequence.row_count - done;
      const bool whole = !sequence.causal || sequence.tree_first != 0;
      const int32_t rows = whole ? left : std::min(left, share - parts.back().rows());
      Append(batch, {&sequence, done, rows}, &parts.back());
      done += rows;
    }
  }
  AssignLogitRows(batch, &parts);
  return parts;
}

}  // namespace specfabric::model
