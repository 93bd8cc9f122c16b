#include "model/cuda/cuda_transformer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status.h"
#include "model/cuda/layers.h"
#include "model/cuda/rank_exchange.h"
#include "model/hidden_states.h"
#include "spdlog/spdlog.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::DeviceBuffer;
using base::cuda::Upload;

const float* OrNull(const DeviceBuffer& values) { return values.As<const float>(); }

}  // namespace

LayerCache CudaTransformer::CacheOf(int32_t layer) const {
  const size_t plane = size_t(slots()) * partition_.kv_heads * config_.head_dim * element_bytes();
  std::byte* const keys = cache_.As<std::byte>() + 2 * layer * plane;
  return {.type = options_.dtype,
          .heads = partition_.heads,
          .kv_heads = partition_.kv_heads,
          .head_dim = config_.head_dim,
          .keys = keys,
          .values = keys + plane};
}

// Of the product qkv_.
PlaceArgs CudaTransformer::PlaceOf(const PassInputs& inputs, int32_t layer, int32_t rows) const {
  const DeviceLayer& weights = weights_.layers[layer];
  return {.cache = CacheOf(layer),
          .rows = rows,
          .qkv = qkv_.As<float>(),
          .bias = OrNull(weights.qkv_bias),
          .query_norm = OrNull(weights.query_norm),
          .key_norm = OrNull(weights.key_norm),
          .epsilon = config_.rms_epsilon,
          .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
          .cosines = inputs.cosines,
          .sines = inputs.sines,
          .views = inputs.views,
          .queries = queries_.As<float>()};
}

void CudaTransformer::MoveKv(absl::Span<const KvMove> moves) {
  if (moves.empty()) return;
  const size_t bytes = moves.size() * sizeof(KvMove);
  moved_.Update(device_->MakeCurrent());
  if (moves_pending_) moved_.Update(device_->Finish());  // it may still read the staging buffer
  moves_pending_ = true;
  moved_.Update(staged_moves_.Reserve(bytes));
  moved_.Update(moves_.Reserve(bytes));
  if (!moved_.ok()) return;
  std::memcpy(staged_moves_.As<void>(), moves.data(), bytes);
  moved_.Update(device_->ToDevice(staged_moves_.As<void>(), bytes, moves_.As<void>()));
  moved_.Update(EnqueueMove({.type = options_.dtype,
                             .cache = cache_.As<void>(),
                             .slots = slots(),
                             .planes = 2 * partition_.layers,
                             .width = partition_.kv_heads * config_.head_dim,
                             .moves = moves_.As<KvMove>(),
                             .count = static_cast<int32_t>(moves.size())},
                            device_->stream()));
}

absl::Status CudaTransformer::PlanFlash(const Batch& batch) {
  return flash_.has_value() ? flash_->Plan(*device_, batch) : absl::OkStatus();
}

// Copies all inputs of a pass, from the batch and its plan, at once.
absl::StatusOr<PassInputs> CudaTransformer::CopyInputs(const Batch& batch, Upload* upload) {
  RopeAngles(rope_, batch.positions, &host_cosines_, &host_sines_);
  PassInputs inputs;
  upload->Add(absl::MakeConstSpan(batch.tokens), &inputs.tokens);
  upload->Add(absl::MakeConstSpan(host_cosines_), &inputs.cosines);
  upload->Add(absl::MakeConstSpan(host_sines_), &inputs.sines);
  upload->Add(RowViews(), &inputs.views);
  upload->Add(absl::MakeConstSpan(plans_.whole().slots), &inputs.slots);
  upload->Add(absl::MakeConstSpan(plans_.whole().extra), &inputs.extra);
  upload->Add(absl::MakeConstSpan(batch.logit_rows), &inputs.logit_rows);
  upload->Add(absl::MakeConstSpan(batch.states), &inputs.states);
  if (absl::Status status = upload->Copy(*device_); !status.ok()) return status;
  return inputs;
}

// [plans][rows]
absl::Span<const RowView> CudaTransformer::RowViews() {
  if (plans_.all().size() == 1) return plans_.whole().rows;
  host_views_.clear();
  for (const AttentionPlan& plan : plans_.all()) {
    host_views_.insert(host_views_.end(), plan.rows.begin(), plan.rows.end());
  }
  return host_views_;
}

absl::Status CudaTransformer::ReserveRows(int32_t rows, int32_t logit_rows) {
  const size_t all = PaddedRows(rows), kept = PaddedRows(logit_rows);
  const size_t hidden = config_.hidden, heads = size_t(partition_.heads) * config_.head_dim;
  const size_t kv_heads = size_t(partition_.kv_heads) * config_.head_dim;
  const size_t features = partition_.intermediate, floats = sizeof(float);
  const size_t elements = element_bytes();
  const size_t staged = partition_.stages > 1 ? hidden * floats : 0;
  const bool gated_at_once = options_.dtype == DataType::kBFloat16 && options_.batch_invariant;
  const size_t gate_up =
      gated_at_once ? 0 : all * static_cast<size_t>(GatedOutputs(partition_.intermediate));
  const size_t scored = config_.states ? config_.states->draft_vocabulary : partition_.vocabulary;
  const std::pair<DeviceBuffer*, size_t> buffers[] = {
      {&residual_, all * hidden * floats},
      {&kept_residual_, kept * hidden * floats},
      {&normed_, all * hidden * elements},
      {&qkv_, all * (heads + 2 * kv_heads) * floats},
      {&queries_, all * heads * floats},
      {&attended_, all * heads * elements},
      {&kept_attended_, kept * heads * elements},
      {&gate_up_, gate_up * floats},
      {&activated_, all * features * elements},
      {&projected_, all * hidden * floats},
      {&logits_, kept * scored * floats},
      {&stage_inputs_, all * staged},
      {&incoming_, all * staged},
      {&stage_results_, kept * staged}};
  // All ranks have the same numbers of rows, and so reallocate in the same passes.
  const bool moves = std::any_of(std::begin(buffers), std::end(buffers), [](const auto& place) {
    return place.second > place.first->bytes();
  });
  const bool fits = kept_states_.Fits(rows) && (!joiner_ || joiner_->Fits(all, kept)) &&
                    (!block_ || block_->Fits(kept));
  if (!moves && fits) return absl::OkStatus();
  ++row_moves_;
  graphs_.Clear();
  absl::Status status = collectives_->Reserve(static_cast<int64_t>(all * hidden));
  status.Update(kept_states_.Reserve(rows));
  if (joiner_) status.Update(joiner_->Reserve(all, kept));
  if (block_) status.Update(block_->Reserve(kept));
  for (const auto& [buffer, bytes] : buffers) status.Update(buffer->Reserve(bytes));
  return status;
}

absl::Status CudaTransformer::PlanAttention(const Batch& batch) {
  return plans_.Make(batch, {config_.vocabulary, options_.kv_blocks, options_.block_size});
}

absl::StatusOr<LogitShard> CudaTransformer::Forward(const Batch& batch) {
  if (!moved_.ok()) return std::exchange(moved_, absl::OkStatus());
  if (absl::Status status = CheckFusedStates(config_, joiner_.has_value(), batch); !status.ok())
    return status;
  if (absl::Status status = PlanAttention(batch); !status.ok()) return status;
  const auto logit_rows = static_cast<int32_t>(batch.logit_rows.size());
  absl::Status status = device_->MakeCurrent();
  const bool graph = options_.cuda_graphs && logit_rows > 0 && batch.rows() <= kMaxPaddedRows;
  status.Update(
      ReserveRows(graph ? kMaxPaddedRows : batch.rows(), graph ? kMaxPaddedRows : logit_rows));
  if (!status.ok()) return status;
  status.Update(graph ? RunGraph(batch) : EnqueueBatch(batch));
  if (joiner_ && status.ok()) {
    status.Update(joiner_->EnqueueNextStates(kept_residual_.As<float>(), logit_rows));
  }
  // Even after an error: enqueued work still reads the staging buffer.
  status.Update(device_->Finish());
  moves_pending_ = false;
  if (!status.ok()) return status;
  void* logits = logits_.As<void>();
  if (joiner_) logits = joiner_->logits(logits);
  if (block_) logits = block_->logits(logits);
  return SharedLogits(logits, logit_rows);
}

// logits: [rows][vocabulary] on the device.
LogitShard CudaTransformer::SharedLogits(void* logits, int32_t rows) {
  device_logits_->Set({.logits = logits,
                       .type = DataType::kFloat32,
                       .stride = partition_.vocabulary,
                       .first = partition_.first_token,
                       .size = partition_.vocabulary});
  return {.rows = rows,
          .width = partition_.vocabulary,
          .first = partition_.first_token,
          .device = &*device_logits_};
}

absl::Status CudaTransformer::EnqueueBatch(const Batch& batch) {
  if (partition_.stages > 1) {
    const std::vector<Batch> parts = MicroBatches(batch);
    if (parts.size() > 1) return EnqueuePipeline(batch, parts);
  }
  if (absl::Status planned = PlanFlash(batch); !planned.ok()) return planned;
  absl::StatusOr<PassInputs> inputs = CopyInputs(batch, &upload_);
  if (!inputs.ok()) return inputs.status();
  return EnqueueWhole(*inputs, {batch.rows(), static_cast<int32_t>(batch.logit_rows.size())});
}

absl::StatusOr<PassInputs> CudaTransformer::CopyPadded(const Batch& batch, const PassSize& size) {
  RopeAngles(rope_, batch.positions, &host_cosines_, &host_sines_);
  if (flash_.has_value()) {
    absl::Status planned = flash_->PlanPadded(*device_, batch, size.rows);
    if (!planned.ok()) return planned;
  }
  const PassArrays arrays = {&batch, &plans_.all(), &host_cosines_, &host_sines_,
                             config_.head_dim / 2};
  return padded_inputs_.Copy(*device_, arrays, size);
}

// Runs the pass of a padded batch: captures it, replays a graph, or launches its kernels one by
// one.
absl::Status CudaTransformer::RunGraph(const Batch& batch) {
  const PassSize size = PaddedSize({batch.rows(), static_cast<int32_t>(batch.logit_rows.size())});
  absl::StatusOr<PassInputs> inputs = CopyPadded(batch, size);
  if (!inputs.ok()) return inputs.status();
  // The addresses of weights and cache never change.
  uint64_t places = base::Mix64(row_moves_) ^ padded_inputs_.moves();
  if (flash_.has_value()) places = base::Mix64(places) ^ flash_->moves();
  const bool worked = graphs_.failure().ok();
  absl::Status status = graphs_.Run(
      *device_, size, places, [&] { return EnqueueWhole(*inputs, size); },
      [&](const absl::Status& captured) { return AgreeOn(group_, captured); });
  if (worked && !graphs_.failure().ok() && group_->size() == 1) {
    spdlog::warn("model: GPU {} of {}: passes are launched one kernel at a time from now on: {}",
                 device_->ordinal(), device_->name(), base::Message(graphs_.failure()));
  }
  return status;
}

absl::Status CudaTransformer::EnqueueWhole(const PassInputs& inputs, const PassSize& size) {
  if (partition_.stages > 1) return EnqueueStages(inputs, size);
  stream_rows_ = residual_.As<float>();
  absl::Status status = EnqueueEmbeddings(inputs.tokens, size.rows, stream_rows_);
  status.Update(EnqueueLayers(inputs, size.rows, size.logit_rows));
  if (size.logit_rows == 0 || !status.ok()) return status;
  return EnqueueHead(size.logit_rows);
}

// logits = head * normed rows.
absl::Status CudaTransformer::EnqueueHead(int32_t rows) {
  absl::Status status = products_->Multiply(options_.dtype, weights_.head, normed_.As<void>(), rows,
                                            logits_.As<float>());
  if (joiner_) {
    status.Update(joiner_->EnqueueTail(logits_.As<float>(), NormOf(weights_.final_norm, rows)));
  }
  if (block_) status.Update(block_->EnqueueTail(logits_.As<float>(), rows));
  return status;
}

absl::Status CudaTransformer::EnqueueEmbeddings(const base::TokenId* tokens, int32_t rows,
                                                float* embeddings) {
  absl::Status status = EnqueueEmbed({.type = options_.dtype,
                                      .table = weights_.embedding.weights->memory.As<void>(),
                                      .packed = weights_.embedding.weights->packed,
                                      .tokens = tokens,
                                      .rows = rows,
                                      .hidden = config_.hidden,
                                      .first = partition_.first_token,
                                      .count = partition_.vocabulary,
                                      .residual = embeddings},
                                     device_->stream());
  status.Update(collectives_->Join(embeddings, int64_t{rows} * config_.hidden));
  return status;
}

// Applies the stage's layers to the residual stream. After the model's last layer only the rows
// whose logits are wanted are left, with the final norm applied.
absl::Status CudaTransformer::EnqueueLayers(const PassInputs& inputs, int32_t rows,
                                            int32_t logit_rows) {
  const std::vector<DeviceLayer>& layers = weights_.layers;
  const bool last_stage = partition_.stage + 1 == partition_.stages;
  const bool all_rows = kept_states_.Keeps(config_.layers);  // of the last layer's output too
  const auto keep = [&](size_t boundary) {
    return kept_states_.EnqueueKeep(*device_, static_cast<int32_t>(boundary), stream_rows_, rows);
  };
  absl::Status status = EnqueueFirstNorm(inputs, rows);
  for (size_t i = 0; i < layers.size(); ++i) {
    status.Update(keep(i));
    status.Update(Attend(inputs, static_cast<int32_t>(i), rows));
    const bool last = i + 1 == layers.size();
    if (last && last_stage && !all_rows) {
      // Past the last KV write, only rows whose logits are wanted matter.
      rows = logit_rows;
      if (rows == 0 || !status.ok()) return status;
      status.Update(KeepRows(inputs, rows));
    }
    status.Update(products_->Multiply(options_.dtype, layers[i].output, attended_rows_, rows,
                                      projected_.As<float>()));
    status.Update(SumAddAndNorm(layers[i].output_bias, layers[i].mlp_norm, rows));
    status.Update(FeedForward(layers[i], rows));
    // After the last layer of a stage that is not the model's last, the norm's result is not used:
    // the next stage computes it again.
    status.Update(SumAddAndNorm(layers[i].down_bias,
                                last ? weights_.final_norm : layers[i + 1].attention_norm, rows));
    if (!status.ok()) return status;
  }
  if (!all_rows) return status;
  status.Update(keep(layers.size()));
  rows = logit_rows;
  if (rows == 0) return status;
  status.Update(KeepResidual(inputs, rows));
  status.Update(Norm(weights_.final_norm, rows));
  return status;
}

// Of the stage's first layer.
absl::Status CudaTransformer::EnqueueFirstNorm(const PassInputs& inputs, int32_t rows) {
  absl::Status status;
  if (joiner_) status = joiner_->EnqueueJoin(inputs.states, rows, stream_rows_);
  if (JoinsStates(config_) || !status.ok()) return status;  // the layer reads what is joined
  return Norm(weights_.layers.front().attention_norm, rows);
}

// attended = attention over the normed residual; writes the rows' keys and values.
absl::Status CudaTransformer::Attend(const PassInputs& inputs, int32_t layer, int32_t rows) {
  const int plan = plans_.index_of(partition_.first_layer + layer);
  // It does not know of what limits layers.
  const bool flash = flash_.has_value() && plan == 0;
  const bool reads_pairs = JoinsStates(config_) && layer == 0;
  const void* normed = reads_pairs ? joiner_->joined() : normed_.As<void>();
  absl::Status status = products_->Multiply(options_.dtype, weights_.layers[layer].qkv, normed,
                                            rows, qkv_.As<float>());
  PlaceArgs place = PlaceOf(inputs, layer, rows);
  if (flash) place.rounded_queries = queries_.As<void>();
  status.Update(EnqueuePlace(place, device_->stream()));
  attended_rows_ = attended_.As<void>();
  if (flash) {
    status.Update(flash_->Run({.queries = queries_.As<void>(),
                               .keys = place.cache.keys,
                               .values = place.cache.values,
                               .out = attended_.As<void>()},
                              device_->stream()));
    return status;
  }
  status.Update(EnqueueAttend({.cache = place.cache,
                               .rows = rows,
                               .views = inputs.views + ptrdiff_t{plan} * rows,
                               .slots = inputs.slots,
                               .extra = inputs.extra,
                               .queries = queries_.As<float>(),
                               .out = attended_.As<void>()},
                              device_->stream()));
  return status;
}

// projected = down(silu(gate(x)) * up(x)), x the normed residual; this rank's part of it.
absl::Status CudaTransformer::FeedForward(const DeviceLayer& layer, int32_t rows) {
  absl::Status status =
      products_->MultiplyGated(options_.dtype, layer.gate_up, normed_.As<void>(), rows,
                               {.features = partition_.intermediate,
                                .bias = OrNull(layer.gate_up_bias),
                                .out = activated_.As<void>(),
                                .products = gate_up_.As<float>()});
  status.Update(products_->Multiply(options_.dtype, layer.down, activated_.As<void>(), rows,
                                    projected_.As<float>()));
  return status;
}

NormArgs CudaTransformer::NormOf(const DeviceBuffer& weight, int32_t rows) const {
  return {.type = options_.dtype,
          .rows = rows,
          .hidden = config_.hidden,
          .epsilon = config_.rms_epsilon,
          .residual = stream_rows_,
          .weight = weight.As<float>(),
          .normed = normed_.As<void>()};
}

// normed = the residual's norm.
absl::Status CudaTransformer::Norm(const DeviceBuffer& weight, int32_t rows) {
  return EnqueueAddAndNorm(NormOf(weight, rows), device_->stream());
}

// residual += the sum over ranks of projected, + bias; normed = its norm.
absl::Status CudaTransformer::SumAddAndNorm(const DeviceBuffer& bias, const DeviceBuffer& weight,
                                            int32_t rows) {
  NormArgs args = NormOf(weight, rows);
  args.bias = OrNull(bias);
  return collectives_->SumAddAndNorm(args, projected_.As<float>());
}

// The residual stream becomes that of the rows whose logits are wanted.
absl::Status CudaTransformer::KeepResidual(const PassInputs& inputs, int32_t rows) {
  absl::Status status = EnqueueKeepRows({.type = DataType::kFloat32,
                                         .index = inputs.logit_rows,
                                         .rows = rows,
                                         .width = config_.hidden,
                                         .from = stream_rows_,
                                         .to = kept_residual_.As<void>()},
                                        device_->stream());
  stream_rows_ = kept_residual_.As<float>();
  return status;
}

// And so does the attention's result.
absl::Status CudaTransformer::KeepRows(const PassInputs& inputs, int32_t rows) {
  absl::Status status = KeepResidual(inputs, rows);
  status.Update(EnqueueKeepRows({.type = options_.dtype,
                                 .index = inputs.logit_rows,
                                 .rows = rows,
                                 .width = partition_.heads * config_.head_dim,
                                 .from = attended_.As<void>(),
                                 .to = kept_attended_.As<void>()},
                                device_->stream()));
  attended_rows_ = kept_attended_.As<void>();
  return status;
}

// Passes that are captured have work for what is kept.
absl::Status CudaTransformer::KeepStates(const std::vector<int32_t>& boundaries) {
  absl::Status status = CheckBoundaries(boundaries, config_.layers, partition_.stages);
  if (!status.ok() || boundaries == kept_states_.boundaries()) return status;
  if (processes_ > 1 && options_.cuda_graphs) {
    // All ranks capture a pass together, and those of other processes are not told.
    return absl::UnimplementedError(absl::StrCat(
        "hidden states of a model on cuda in ", processes_,
        " processes are not supported; allowed: 1, or --disable_features=", kCudaGraphs));
  }
  if (status = device_->MakeCurrent(); !status.ok()) return status;
  graphs_.Clear();
  return kept_states_.Keep(boundaries, std::max(options_.max_rows, kMaxPaddedRows));
}

absl::Status CudaTransformer::CopyStates(absl::Span<const StateCopy> copies) {
  return kept_states_.Gather(*device_, copies);
}

absl::Status CudaTransformer::FuseStates(absl::Span<const float> states, int rows, float* fused) {
  if (!fuser_) return RankModel::FuseStates(states, rows, fused);
  const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(states.data()),
                                        states.size() * sizeof(float));
  return fuser_->Fuse({.type = DataType::kFloat32, .bytes = bytes, .rows = rows}, fused).status();
}

absl::StatusOr<bool> CudaTransformer::FuseDeviceStates(absl::Span<const uint8_t> states, int rows,
                                                       float* fused) {
  if (!fuser_) return RankModel::FuseDeviceStates(states, rows, fused);
  return fuser_->Fuse(
      {.type = DataType::kBFloat16, .bytes = states, .on_device = true, .rows = rows}, fused);
}

absl::Span<const float> CudaTransformer::next_states() const {
  if (block_ && block_->head() != nullptr) return block_->head()->states();
  return joiner_ ? joiner_->next_states() : absl::Span<const float>();
}

}  // namespace specfabric::model::cuda
