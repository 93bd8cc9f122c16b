#include "model/cuda/flash_attention.h"

#include <algorithm>
#include <utility>

namespace specfabric::model::cuda {
namespace {

using base::cuda::Device;
using base::cuda::Stream;

// Blocks of a sequence that graphs are first captured for; longer sequences need a new capture.
constexpr int32_t kFirstSlots = 2048;

// Raises *limit to at least `needed`, with room to spare so that it happens rarely. True: it was
// too low.
bool Raise(int32_t needed, int32_t* limit) {
  if (needed <= *limit) return false;
  *limit = std::max(needed, 2 * *limit);
  return true;
}

}  // namespace

absl::StatusOr<FlashAttention> FlashAttention::Create(const TreeAttentionConfig& config) {
  FlashAttention made(config);
  TreeAttentionRules& rules = made.plain_.config.rules;
  rules.max_rows = rules.max_sequences = rules.max_blocks = rules.max_mask_words = 1;
  TreeAttentionRules trial = rules;
  trial.processors = std::max(trial.processors, 1);
  if (const auto capacity = CapacityOf(trial); !capacity.ok()) return capacity.status();
  return made;
}

absl::StatusOr<bool> FlashAttention::Reserve(const Device& device, const Batch& batch,
                                             Sized* sized) {
  TreeAttentionRules& rules = sized->config.rules;
  const TreeAttentionRules before = rules;
  int32_t blocks = 1;
  for (const BatchSequence& s : batch.sequences) blocks = std::max(blocks, s.block_count);
  bool larger = Raise(batch.rows(), &rules.max_rows);
  larger |= Raise(static_cast<int32_t>(batch.sequences.size()), &rules.max_sequences);
  larger |= Raise(blocks, &rules.max_blocks);
  rules.max_blocks = std::min(rules.max_blocks, std::max(rules.blocks, blocks));
  larger |= Raise(batch.mask_words, &rules.max_mask_words);
  if (!larger && sized->attention.has_value()) return false;
  // Enqueued work still uses the old memory.
  if (absl::Status done = device.Finish(); !done.ok()) return done;
  sized->attention.reset();
  absl::StatusOr<TreeAttention> made = TreeAttention::Create(sized->config);
  if (!made.ok()) {
    rules = before;  // smaller batches may fit
    return made.status();
  }
  sized->attention = *std::move(made);
  return true;
}

absl::Status FlashAttention::Plan(const Device& device, const Batch& batch) {
  planned_ = nullptr;
  if (auto reserved = Reserve(device, batch, &plain_); !reserved.ok()) return reserved.status();
  planned_ = &*plain_.attention;
  return planned_->Plan(batch, device.stream());
}

absl::Status FlashAttention::PlanPadded(const Device& device, const Batch& batch, int32_t rows) {
  planned_ = nullptr;
  Sized& sized = padded_.try_emplace(rows, Sized{plain_.config}).first->second;
  if (!sized.attention.has_value()) {
    TreeAttentionRules& rules = sized.config.rules;
    rules.fixed_grid = true;
    rules.max_rows = rules.max_sequences = rows;
    // The graph launches thread blocks for as many, whatever the batch has.
    rules.max_blocks = std::clamp(kFirstSlots / rules.block_size, 1, rules.blocks);
    rules.max_mask_words = 1;
  }
  auto reserved = Reserve(device, batch, &sized);
  if (!reserved.ok()) return reserved.status();
  moves_ += *reserved;
  planned_ = &*sized.attention;
  return planned_->Plan(batch, device.stream());
}

absl::Status FlashAttention::Run(const LayerAttention& layer, Stream stream) {
  if (planned_ == nullptr) {
    return absl::FailedPreconditionError("tree attention: no batch is planned");
  }
  return planned_->Run(layer, stream);
}

}  // namespace specfabric::model::cuda
