#include "model/cpu/cpu_transformer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "model/checkpoint/checkpoint_tensors.h"
#include "model/cpu/packed_linear.h"
#include "model/numerics.h"
#include "model/parallel/micro_batches.h"
#include "model/reference/attention.h"
#include "model/reference/linear.h"

namespace specfabric::model {
namespace {

// Raised whenever the same weights would give other bits: order of sums, rounding, layout.
constexpr uint64_t kNumericsVersion = 1;

// From this many rows on, a pass spends most of its time on arithmetic rather than on reading the
// weights, so that splitting it into micro-batches of this size costs little.
constexpr int kMicroBatchRows = 64;

// Room for `count` floats, zero where new. Never shrinks, so that steady passes allocate nothing.
float* Reserve(std::vector<float>* buffer, size_t count) {
  if (buffer->size() < count) buffer->resize(count);
  return buffer->data();
}

KvShape ShapeOfCache(const ModelConfig& config, const RankOptions& options,
                     const Partition& partition) {
  return {.layers = partition.layers,
          .kv_heads = partition.kv_heads,
          .head_dim = config.head_dim,
          .blocks = options.kv_blocks,
          .block_size = options.block_size,
          .dtype = options.dtype};
}

// The packed kernels give the same bits for any number of ranks, stages and threads; libtorch does
// not.
uint64_t HashNumerics(const RankOptions& options, const cpu::Kernels& kernels,
                      const Partition& partition) {
  uint64_t hash =
      HashKernels(options.reference ? "libtorch" : kernels.name, kNumericsVersion, options.dtype);
  if (options.reference) {
    hash = base::Mix64(hash ^ static_cast<uint64_t>(partition.ranks));
    hash = base::Mix64(hash ^ static_cast<uint64_t>(partition.stages));
    hash = base::Mix64(hash ^ static_cast<uint64_t>(options.threads));
    hash = base::Mix64(hash ^ static_cast<uint64_t>(options.batch_invariant));
  }
  return hash;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuTransformer>> CpuTransformer::Load(const std::string& model_dir,
                                                                     const RankOptions& options,
                                                                     Communicator* communicator) {
  absl::StatusOr<ModelConfig> config = LoadDraftConfig(model_dir, options.target_dir);
  if (!config.ok()) return config.status();
  if (config->states && !options.state_layers.empty()) {
    config->states->layers = options.state_layers;
  }
  const absl::StatusOr<GroupShape> shape = ShapeOf(communicator->size(), options.pipeline_stages);
  if (!shape.ok()) return shape.status();
  if (absl::Status status = CheckShape(*config, *shape); !status.ok()) return status;
  if (absl::Status status = CheckDrafterShape(*config, *shape); !status.ok()) return status;
  if (options.threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.threads, " threads in a rank; allowed: at least 1"));
  }
  absl::StatusOr<std::unique_ptr<Communicator>> stage = SplitStages(communicator, shape->stages);
  if (!stage.ok()) return stage.status();
  const Partition partition = MakePartition(*config, *shape, communicator->rank());
  absl::StatusOr<KvCache> cache = KvCache::Create(ShapeOfCache(*config, options, partition));
  if (!cache.ok()) return cache.status();
  std::unique_ptr<CpuTransformer> model(new CpuTransformer(
      *std::move(config), options, communicator, *std::move(stage), partition, *std::move(cache)));
  if (absl::Status status = model->LoadCheckpoint(model_dir); !status.ok()) return status;
  model->fingerprint_ ^= HashNumerics(options, model->kernels_, partition);
  return model;
}

CpuTransformer::CpuTransformer(ModelConfig config, const RankOptions& options,
                               Communicator* communicator, std::unique_ptr<Communicator> stage,
                               const Partition& partition, KvCache cache)
    : config_(std::move(config)),
      options_(options),
      communicator_(communicator),
      own_stage_(std::move(stage)),
      stage_(own_stage_ == nullptr ? communicator : own_stage_.get()),
      partition_(partition),
      kernels_(cpu::BestKernels()),
      pool_(options.threads),
      rope_(MakeRopeTable(config_.rope, config_.head_dim)),
      attention_(kernels_, &pool_),
      kept_(config_.hidden, options.dtype, kernels_),
      cache_(std::move(cache)),
      plans_(config_) {}

absl::StatusOr<std::unique_ptr<Linear>> CpuTransformer::MakeLinear(const LinearShape& shape,
                                                                   const WeightReader& read) {
  if (options_.reference) {
    return reference::MakeLinear(shape, options_.dtype, options_.batch_invariant, read);
  }
  return cpu::PackedLinear::Create(shape, options_.dtype, read, kernels_, &pool_);
}

MatrixFactory<std::unique_ptr<Linear>> CpuTransformer::LinearFactory() {
  return [this](const LinearShape& shape, const StoredRows& rows) {
    return MakeLinear(shape, [&](int32_t output, float* weights) {
      rows.Read(output, 1, DataType::kFloat32, reinterpret_cast<std::byte*>(weights));
    });
  };
}

absl::Status CpuTransformer::LoadCheckpoint(const std::string& model_dir) {
  if (options_.reference) reference::SetThreads(options_.threads);
  if (config_.states) return LoadDrafter(model_dir);
  absl::StatusOr<OpenedCheckpoint> opened = OpenCheckpoint(model_dir, config_);
  if (!opened.ok()) return opened.status();
  const Checkpoint& checkpoint = opened->checkpoint;
  config_.tied_embeddings = opened->tied_embeddings;
  const absl::StatusOr<StoredRows> embedding = FindEmbedding(checkpoint, config_, partition_);
  if (!embedding.ok()) return embedding.status();
  embedding_ = EmbeddingTable(*embedding, options_.dtype);
  const MatrixFactory<std::unique_ptr<Linear>> make = LinearFactory();
  absl::StatusOr<ModelWeights> weights = LoadLayers(checkpoint, config_, partition_, make);
  if (!weights.ok()) return weights.status();
  weights_ = *std::move(weights);
  absl::StatusOr<std::unique_ptr<Linear>> head = LoadHead(checkpoint, config_, partition_, make);
  if (!head.ok()) return head.status();
  weights_.head = *std::move(head);
  fingerprint_ = HashModel(checkpoint, config_, rope_);
  return absl::OkStatus();
}

absl::Status CpuTransformer::KeepStates(const std::vector<int32_t>& boundaries) {
  absl::Status sound = CheckBoundaries(boundaries, config_.layers, partition_.stages);
  if (sound.ok()) kept_.Keep(boundaries);
  return sound;
}

absl::Status CpuTransformer::CopyStates(absl::Span<const StateCopy> copies) {
  for (const StateCopy& copy : copies) kept_.Gather(copy);
  return absl::OkStatus();
}

absl::StatusOr<LogitShard> CpuTransformer::Forward(const Batch& batch) {
  absl::Status status = CheckFusedStates(config_, drafter_ && drafter_->joins_states(), batch);
  if (!status.ok()) return status;
  if (status = PlanAttention(batch); !status.ok()) return status;
  Embed(batch);
  if (drafter_ && drafter_->mtp) {
    status = drafter_->mtp->Join(batch.states.data(), batch.rows(), residual_.data());
    if (!status.ok()) return status;
  }
  kept_.Begin(batch.rows());
  const absl::StatusOr<int> rows = partition_.stages == 1 ? RunLayers(batch) : RunPipeline(batch);
  if (!rows.ok()) return rows.status();
  Normalise(weights_.final_norm, *rows);
  const int32_t width = drafter_ ? config_.states->draft_vocabulary : partition_.vocabulary;
  float* logits = Reserve(&logits_, static_cast<size_t>(*rows) * width);
  if (status = weights_.head->Forward(normed_.data(), *rows, logits); !status.ok()) return status;
  if (!drafter_) return LogitShard{logits, *rows, partition_.vocabulary, partition_.first_token};
  if (drafter_->joins_states()) {
    next_states_ = {config_.states->norm_output ? normed_.data() : residual_.data(),
                    static_cast<size_t>(*rows) * config_.hidden};
  }
  return LogitShard{drafter_->vocabulary.Spread(logits, *rows), *rows, config_.vocabulary, 0};
}

// Runs all layers of all stages: replaces the residual of all rows by the last layer's output for
// the logit rows, on all ranks, and returns their number. In each time slot every stage runs the
// micro-batch that the stage before it ran in the previous slot; then all ranks pass them on.
absl::StatusOr<int> CpuTransformer::RunPipeline(const Batch& batch) {
  const std::vector<Batch> parts =
      SplitBatch(batch, kMicroBatchesPerStage * partition_.stages,
                 options_.micro_batch_rows == 0 ? kMicroBatchRows : options_.micro_batch_rows);
  const int count = static_cast<int>(parts.size());
  const int stage = partition_.stage, last_stage = partition_.stages - 1;
  const size_t hidden = config_.hidden;
  const auto rows_in = [&](int part) { return part < 0 || part >= count ? 0 : parts[part].rows(); };
  std::swap(residual_, stage_inputs_);
  const float* embedded = stage_inputs_.data();
  float* result = Reserve(&stage_results_, batch.logit_rows.size() * hidden);
  // After an error this rank keeps passing rows on: the other ranks wait for them.
  absl::Status failed;
  for (int slot = 0; slot < count + last_stage; ++slot) {
    const int part = slot - stage;
    const size_t values = rows_in(part) * hidden;
    if (values > 0) {
      if (stage == 0) {
        std::copy_n(embedded, values, Reserve(&residual_, values));
        embedded += values;
      }
      const absl::StatusOr<int> kept = RunPart(parts[part]);
      failed.Update(kept.status());
      if (kept.ok() && stage == last_stage) {
        result = std::copy_n(residual_.data(), *kept * hidden, result);
      }
    }
    if (slot + 1 == count + last_stage) break;
    HandOver(stage == last_stage ? 0 : rows_in(part), stage == 0 ? 0 : rows_in(part + 1));
  }
  const size_t values = batch.logit_rows.size() * hidden;
  communicator_->Broadcast(communicator_->size() - 1,
                           absl::MakeSpan(stage_results_.data(), values));
  std::swap(residual_, stage_results_);
  if (!failed.ok()) return failed;
  return static_cast<int>(batch.logit_rows.size());
}

// Sends the residual's first rows to the next stage and replaces the residual by the rows from the
// stage before, if there are any.
void CpuTransformer::HandOver(int rows_out, int rows_in) {
  const size_t out = static_cast<size_t>(rows_out) * config_.hidden;
  const size_t in = static_cast<size_t>(rows_in) * config_.hidden;
  float* incoming = Reserve(&incoming_, in);
  communicator_->Shift(partition_.ranks, absl::MakeConstSpan(Reserve(&residual_, out), out),
                       absl::MakeSpan(incoming, in));
  if (in > 0) std::swap(residual_, incoming_);
}

absl::Status CpuTransformer::PlanAttention(const Batch& batch) {
  return plans_.Make(batch, {config_.vocabulary, options_.kv_blocks, options_.block_size});
}

absl::StatusOr<int> CpuTransformer::RunPart(const Batch& batch) {
  if (absl::Status status = PlanAttention(batch); !status.ok()) return status;
  return RunLayers(batch);
}

// Runs this rank's layers on the residual, after PlanAttention(batch). The result has all rows, or
// only the logit rows after the last stage; returns their number.
absl::StatusOr<int> CpuTransformer::RunLayers(const Batch& batch) {
  RopeAngles(rope_, batch.positions, &cosines_, &sines_);
  int rows = batch.rows();
  for (int layer = 0; layer < partition_.layers; ++layer) {
    kept_.Copy(layer, residual_.data());
    if (absl::Status status = Attend(layer, batch); !status.ok()) return status;
    const LayerWeights& weights = weights_.layers[layer];
    const bool is_last = partition_.first_layer + layer + 1 == config_.layers;
    // After the last KV write only the rows whose logits are wanted are needed, unless the last
    // layer's output is kept for all.
    if (is_last && !kept_.Keeps(config_.layers)) rows = KeepRows(batch.logit_rows);
    float* projected = Reserve(&projected_, static_cast<size_t>(rows) * config_.hidden);
    absl::Status status = weights.output->Forward(attended_.data(), rows, projected);
    if (!status.ok()) return status;
    AddProjected(weights.output_bias, rows);
    if (status = FeedForward(weights, rows); !status.ok()) return status;
  }
  if (kept_.Keeps(config_.layers)) {
    kept_.Copy(config_.layers, residual_.data());
    rows = KeepRows(batch.logit_rows);
  }
  return rows;
}

// residual = the tokens' embeddings. A rank has the rows of its part of the vocabulary and
// contributes zeros for the others. Adding +0 turns -0 into +0, as the all-reduce does, so that the
// number of ranks changes no bit.
void CpuTransformer::Embed(const Batch& batch) {
  const size_t hidden = config_.hidden;
  float* residual = Reserve(&residual_, batch.tokens.size() * hidden);
  for (size_t row = 0; row < batch.tokens.size(); ++row) {
    float* out = residual + row * hidden;
    const int32_t index = batch.tokens[row] - partition_.first_token;
    if (index < 0 || index >= partition_.vocabulary) {
      std::fill(out, out + hidden, 0.0f);
      continue;
    }
    embedding_.Get(index, out);
    for (size_t i = 0; i < hidden; ++i) out[i] += 0.0f;
  }
  communicator_->AllReduceSum(absl::MakeSpan(residual, batch.tokens.size() * hidden));
}

// attended = attention over the normed residual; writes the rows' keys and values.
absl::Status CpuTransformer::Attend(int layer, const Batch& batch) {
  const LayerWeights& weights = weights_.layers[layer];
  const int rows = batch.rows();
  const float* inputs = nullptr;
  if (drafter_ && drafter_->eagle && layer == 0) {
    inputs =
        drafter_->eagle->Join(batch.states.data(), rows, weights.attention_norm, residual_.data());
  } else {
    Normalise(weights.attention_norm, rows);
    inputs = normed_.data();
  }
  const size_t width = (partition_.heads + 2 * partition_.kv_heads) * config_.head_dim;
  float* qkv = Reserve(&qkv_, rows * width);
  if (absl::Status status = weights.qkv->Forward(inputs, rows, qkv); !status.ok()) {
    return status;
  }
  PlaceQueriesAndKeys(layer, rows);

  AttentionInputs attention;
  attention.plan = &plans_.of(partition_.first_layer + layer);
  attention.cache = &cache_;
  attention.layer = layer;
  attention.heads = partition_.heads;
  attention.queries = queries_.data();
  float* out = Reserve(&attended_, static_cast<size_t>(rows) * partition_.heads * config_.head_dim);
  return options_.reference ? reference::Attention(attention, out)
                            : attention_.Forward(attention, out);
}

// From qkv: bias, per-head norms and rotation; queries into queries_, keys and values into the
// cache.
void CpuTransformer::PlaceQueriesAndKeys(int layer, int rows) {
  const LayerWeights& weights = weights_.layers[layer];
  const int heads = partition_.heads, kv_heads = partition_.kv_heads, d = config_.head_dim;
  const int stride = cache_.shape().stride();
  const size_t width = static_cast<size_t>(heads + 2 * kv_heads) * d;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  float* queries = Reserve(&queries_, static_cast<size_t>(rows) * heads * stride);

  pool_.Run(rows, [&](int, int begin, int end) {
    for (int row = begin; row < end; ++row) {
      float* q = qkv_.data() + row * width;
      float* k = q + heads * d;
      const float* v = k + kv_heads * d;
      for (size_t i = 0; i < weights.qkv_bias.size(); ++i) q[i] += weights.qkv_bias[i];
      for (int h = 0; h < heads; ++h) {
        NormAndRotate(row, weights.query_norm, q + h * d);
        float* out = queries + (static_cast<size_t>(row) * heads + h) * stride;
        for (int i = 0; i < d; ++i) out[i] = q[h * d + i] * scale;
      }
      PlaceKeys(layer, row, k, v);
    }
  });
}

void CpuTransformer::NormAndRotate(int row, const std::vector<float>& norm, float* head) const {
  const int d = config_.head_dim;
  if (!norm.empty()) kernels_.rms_norm(head, norm.data(), config_.rms_epsilon, d, head);
  const size_t angle = static_cast<size_t>(row) * (d / 2);
  Rotate(&cosines_[angle], &sines_[angle], d, head);
}

// keys and values: [kv_heads][head_dim], with their biases.
void CpuTransformer::PlaceKeys(int layer, int row, float* keys, const float* values) {
  const int d = config_.head_dim, slot = plans_.whole().rows[row].write_slot;
  for (int h = 0; h < partition_.kv_heads; ++h) {
    NormAndRotate(row, weights_.layers[layer].key_norm, keys + h * d);
    cache_.Write(layer, h, slot, keys + h * d, values + h * d);
  }
}

// residual += down(silu(gate(x)) * up(x)), x the normed residual.
absl::Status CpuTransformer::FeedForward(const LayerWeights& weights, int rows) {
  Normalise(weights.mlp_norm, rows);
  float* projected = Reserve(&projected_, static_cast<size_t>(rows) * config_.hidden);
  const bool fuses = weights.gate_up_bias.empty() && weights.down->FusesGates(*weights.gate_up);
  const absl::Status status =
      fuses ? weights.down->ForwardGated(weights.gate_up.get(), normed_.data(), rows, projected)
            : GateApart(weights, rows, projected);
  if (!status.ok()) return status;
  AddProjected(weights.down_bias, rows);
  return status;
}

// projected = down(silu(gate(x)) * up(x)), with all gates and ups in memory in between.
absl::Status CpuTransformer::GateApart(const LayerWeights& weights, int rows, float* projected) {
  const size_t features = partition_.intermediate;
  float* activated = Reserve(&activated_, rows * features);
  float* gate_up = Reserve(&gate_up_, rows * features * 2);
  if (absl::Status status = weights.gate_up->Forward(normed_.data(), rows, gate_up); !status.ok()) {
    return status;
  }
  pool_.Run(rows, [&](int, int begin, int end) {
    for (int row = begin; row < end; ++row) {
      float* gate = gate_up + row * features * 2;
      for (size_t i = 0; i < weights.gate_up_bias.size(); ++i) gate[i] += weights.gate_up_bias[i];
      kernels_.silu_multiply(gate, gate + features, static_cast<int>(features),
                             activated + row * features);
    }
  });
  return weights.down->Forward(activated, rows, projected);
}

// residual += sum over the stage's ranks of projected, plus the bias once.
void CpuTransformer::AddProjected(const std::vector<float>& bias, int rows) {
  const size_t hidden = config_.hidden;
  stage_->AllReduceSum(absl::MakeSpan(projected_.data(), rows * hidden));
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    float* from = projected_.data() + row * hidden;
    for (size_t i = 0; i < bias.size(); ++i) from[i] += bias[i];
    float* to = residual_.data() + row * hidden;
    for (size_t i = 0; i < hidden; ++i) to[i] += from[i];
  }
}

// normed = RMSNorm(residual) * weight
void CpuTransformer::Normalise(const std::vector<float>& weight, int rows) {
  const size_t hidden = config_.hidden;
  float* normed = Reserve(&normed_, rows * hidden);
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    kernels_.rms_norm(residual_.data() + row * hidden, weight.data(), config_.rms_epsilon,
                      config_.hidden, normed + row * hidden);
  }
}

// Moves the given rows, ascending, of the residual and the attention's result to the front, and
// returns their number.
int CpuTransformer::KeepRows(const std::vector<int32_t>& rows) {
  const size_t hidden = config_.hidden;
  const size_t attended = static_cast<size_t>(partition_.heads) * config_.head_dim;
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t row = rows[i];
    if (row == i) continue;
    std::copy_n(residual_.data() + row * hidden, hidden, residual_.data() + i * hidden);
    std::copy_n(attended_.data() + row * attended, attended, attended_.data() + i * attended);
  }
  return static_cast<int>(rows.size());
}

void CpuTransformer::MoveKv(absl::Span<const KvMove> moves) {
  for (const KvMove& move : moves) cache_.Move(move.from, move.to);
}

}  // namespace specfabric::model
