#include "model/cuda/flash_attention.h"

#include <algorithm>
#include <utility>

namespace specfabric::model::cuda {
namespace {

using base::cuda::Device;
using base::cuda::Stream;

// Slots of a sequence that graphs are first captured for; longer sequences need a new capture.
constexpr int32_t kFirstSlots = 2048;
// Rows of a sequence.
constexpr int64_t kLongPrefill = 256;

// Raises *limit to at least `needed`, with room to spare so that it happens rarely. True: it was
// too low.
bool Raise(int32_t needed, int32_t* limit) {
  if (needed <= *limit) return false;
  *limit = std::max(needed, 2 * *limit);
  return true;
}

bool HasBlocks(const Batch& batch) {
  return std::any_of(batch.sequences.begin(), batch.sequences.end(),
                     [](const BatchSequence& s) { return s.block; });
}

}  // namespace

absl::StatusOr<FlashAttention> FlashAttention::Create(const TreeAttentionConfig& config) {
  TreeAttentionConfig smallest = config;
  TreeAttentionRules& rules = smallest.rules;
  rules.max_rows = rules.max_sequences = rules.max_blocks = rules.max_mask_words = 1;
  auto scratch = MakeSplitScratch(smallest);
  if (!scratch.ok()) return scratch.status();
  return FlashAttention(smallest, *std::move(scratch));
}

absl::Status FlashAttention::Make(Sized<SplitAttention>* sized) const {
  auto made = SplitAttention::Create(sized->config, scratch_);
  if (!made.ok()) return made.status();
  sized->attention = *std::move(made);
  return absl::OkStatus();
}
absl::Status FlashAttention::Make(Sized<TreeAttention>* sized) const {
  auto made = TreeAttention::Create(sized->config);
  if (!made.ok()) return made.status();
  sized->attention = *std::move(made);
  return absl::OkStatus();
}

template <typename Attention>
absl::StatusOr<bool> FlashAttention::Reserve(const Device& device, const Batch& batch,
                                             Sized<Attention>* sized) const {
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
  absl::Status made = Make(sized);
  if (!made.ok()) {
    rules = before;  // smaller batches may fit
    return made;
  }
  return true;
}

template <typename Attention>
absl::Status FlashAttention::PlanIn(const Device& device, const Batch& batch,
                                    Sized<Attention>* sized) {
  if (auto reserved = Reserve(device, batch, sized); !reserved.ok()) return reserved.status();
  planned_ = &*sized->attention;
  return sized->attention->Plan(batch, device.stream());
}

// Chunks of prompts that are long on average; a mixed batch of few rows goes the other way.
bool FlashAttention::IsLongPrefill(const Batch& batch) const {
  return batch.rows() >= kLongPrefill * std::max<int64_t>(1, batch.sequences.size());
}

const Batch& FlashAttention::WithMasks(const Batch& batch) {
  masked_.tokens = batch.tokens;
  masked_.positions = batch.positions;
  masked_.sequences = batch.sequences;
  masked_.blocks = batch.blocks;
  masked_.ancestors = batch.ancestors;
  masked_.mask_words = batch.mask_words;
  masked_.ancestors.resize(size_t(batch.rows()) * batch.mask_words);
  for (BatchSequence& s : masked_.sequences) {
    if (!s.block) continue;
    s.causal = false;
    uint64_t* const words = &masked_.ancestors[size_t(s.first_row) * batch.mask_words];
    const int32_t nodes = std::min(s.tree_first + s.row_count, 64 * batch.mask_words);
    for (int32_t i = 0; i < s.row_count * nodes; ++i) {
      const int32_t node = i % nodes;
      words[i / nodes * batch.mask_words + node / 64] |= uint64_t{1} << (node % 64);
    }
  }
  return masked_;
}

absl::Status FlashAttention::Plan(const Device& device, const Batch& batch) {
  planned_ = {};
  if (HasBlocks(batch)) return PlanIn(device, WithMasks(batch), &split_);
  if (!split_.config.rules.batch_invariant && IsLongPrefill(batch)) {
    return PlanIn(device, batch, &prefill_);
  }
  return PlanIn(device, batch, &split_);
}

absl::Status FlashAttention::PlanPadded(const Device& device, const Batch& batch, int32_t rows) {
  planned_ = {};
  const Batch& masked = HasBlocks(batch) ? WithMasks(batch) : batch;
  auto& sized = padded_.try_emplace(rows, Sized<SplitAttention>{split_.config}).first->second;
  if (!sized.attention.has_value()) {
    TreeAttentionRules& rules = sized.config.rules;
    rules.fixed_grid = true;
    rules.max_rows = rules.max_sequences = rows;
    rules.max_blocks = std::clamp(kFirstSlots / rules.block_size, 1, rules.blocks);
    rules.max_mask_words = 1;
  }
  auto reserved = Reserve(device, masked, &sized);
  if (!reserved.ok()) return reserved.status();
  moves_ += *reserved;
  planned_ = &*sized.attention;
  return sized.attention->Plan(masked, device.stream());
}

absl::Status FlashAttention::Run(const LayerAttention& layer, Stream stream) {
  if (auto* const split = std::get_if<SplitAttention*>(&planned_)) {
    return (*split)->Run(layer, stream);
  }
  if (auto* const prefill = std::get_if<TreeAttention*>(&planned_)) {
    return (*prefill)->Run(layer, stream);
  }
  return absl::FailedPreconditionError("tree attention: no batch is planned");
}

}  // namespace specfabric::model::cuda
