#include "model/cuda/flash_attention.h"

#include <algorithm>
#include <utility>

namespace specfabric::model::cuda {
namespace {

// Raises *limit to what is needed, and beyond so that it is seldom. True: it was not enough.
bool Raise(int32_t needed, int32_t* limit) {
  if (needed <= *limit) return false;
  *limit = std::max(needed, 2 * *limit);
  return true;
}

}  // namespace

absl::StatusOr<FlashAttention> FlashAttention::Create(const TreeAttentionConfig& config) {
  FlashAttention made(config);
  TreeAttentionRules& rules = made.config_.rules;
  rules.max_rows = rules.max_sequences = rules.max_blocks = rules.max_mask_words = 1;
  TreeAttentionRules trial = rules;
  trial.processors = std::max(trial.processors, 1);
  if (const auto capacity = CapacityOf(trial); !capacity.ok()) return capacity.status();
  return made;
}

absl::Status FlashAttention::Plan(const Device& device, const Batch& batch) {
  TreeAttentionRules& rules = config_.rules;
  int32_t blocks = 1;
  for (const BatchSequence& s : batch.sequences) blocks = std::max(blocks, s.block_count);
  bool larger = Raise(batch.rows(), &rules.max_rows);
  larger |= Raise(static_cast<int32_t>(batch.sequences.size()), &rules.max_sequences);
  larger |= Raise(blocks, &rules.max_blocks);
  larger |= Raise(batch.mask_words, &rules.max_mask_words);
  if (larger || !attention_.has_value()) {
    // What was enqueued uses the memory of the one before.
    if (absl::Status done = device.Finish(); !done.ok()) return done;
    attention_.reset();
    absl::StatusOr<TreeAttention> made = TreeAttention::Create(config_);
    if (!made.ok()) return made.status();
    attention_ = *std::move(made);
  }
  return attention_->Plan(batch, device.stream());
}

absl::Status FlashAttention::Run(const LayerAttention& layer, Stream stream) {
  if (!attention_.has_value()) {
    return absl::FailedPreconditionError("tree attention: no batch is planned");
  }
  return attention_->Run(layer, stream);
}

}  // namespace specfabric::model::cuda
