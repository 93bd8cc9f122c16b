#ifndef SPECFABRIC_MODEL_CHECKPOINT_LOAD_WEIGHTS_H_
#define SPECFABRIC_MODEL_CHECKPOINT_LOAD_WEIGHTS_H_

// LoadLayers, LoadHead, LoadFuseWeights, LoadMtpWeights and LoadSequentialWeights, for the files
// that instantiate them. How checkpoints name their tensors, and which part of each a rank has.

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model/checkpoint/checkpoint_tensors.h"
#include "model/checkpoint/stored_rows.h"
#include "model/cpu/weights.h"

namespace specfabric::model {

namespace loading {

// A rectangle of a stored matrix: outputs (rows) and inputs (columns) of this rank.
struct MatrixShard {
  std::string name;
  int32_t rows = 0, columns = 0;  // of the whole matrix
  int32_t first_row = 0, row_count = 0;
  int32_t first_column = 0, column_count = 0;
};

template <typename Matrix>
class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const MatrixFactory<Matrix>& make_matrix)
      : checkpoint_(checkpoint), make_matrix_(make_matrix) {}

  absl::Status Vector(const std::string& name, int32_t size, std::vector<float>* out) const {
    return VectorShard(name, size, 0, size, out);
  }

  // Appends elements [first, first + count) of a vector of `size`.
  absl::Status VectorShard(const std::string& name, int32_t size, int32_t first, int32_t count,
                           std::vector<float>* out) const {
    absl::StatusOr<const StoredTensor*> tensor = checkpoint_.Find(name, {size});
    if (!tensor.ok()) return tensor.status();
    const size_t before = out->size();
    out->resize(before + count);
    ReadFloats(**tensor, first, count, out->data() + before);
    return absl::OkStatus();
  }

  // One layer whose outputs are those of the shards, one after the other. All shards have the same
  // columns.
  absl::Status Layer(const std::vector<MatrixShard>& shards, int32_t parts, Matrix* out,
                     bool gated = false) const {
    StoredRows rows(shards.front().column_count);
    for (const MatrixShard& shard : shards) {
      absl::StatusOr<const StoredTensor*> tensor =
          checkpoint_.Find(shard.name, {shard.rows, shard.columns});
      if (!tensor.ok()) return tensor.status();
      rows.Add({.tensor = *tensor,
                .columns = shard.columns,
                .first_row = shard.first_row,
                .row_count = shard.row_count,
                .first_column = shard.first_column});
    }
    const LinearShape shape = {
        .outputs = rows.rows(), .inputs = rows.inputs(), .parts = parts, .gated = gated};
    absl::StatusOr<Matrix> matrix = make_matrix_(shape, rows);
    if (!matrix.ok()) return matrix.status();
    *out = *std::move(matrix);
    return absl::OkStatus();
  }

 private:
  const Checkpoint& checkpoint_;
  const MatrixFactory<Matrix>& make_matrix_;
};

inline MatrixShard RowShard(const std::string& name, int32_t rows, int32_t columns, int32_t first,
                            int32_t count) {
  return {name, rows, columns, first, count, 0, columns};
}

inline MatrixShard ColumnShard(const std::string& name, int32_t rows, int32_t columns,
                               int32_t first, int32_t count) {
  return {name, rows, columns, 0, rows, first, count};
}

// Of the keys and values that a block drafter's layer has for committed positions.
inline std::vector<MatrixShard> KeyValueShards(const Checkpoint& checkpoint,
                                               const ModelConfig& config, int32_t layer) {
  const std::string prefix = absl::StrCat(LayerPrefix(checkpoint, config, layer), "self_attn.");
  const int32_t outputs = config.kv_heads * config.head_dim;
  return {RowShard(prefix + "k_proj.weight", outputs, config.hidden, 0, outputs),
          RowShard(prefix + "v_proj.weight", outputs, config.hidden, 0, outputs)};
}

// A layer with a bias, whole.
template <typename Matrix>
absl::Status LoadBiased(const Loader<Matrix>& loader, const char* name, int32_t outputs,
                        int32_t inputs, Matrix* weights, std::vector<float>* bias) {
  absl::Status status =
      loader.Layer({RowShard(absl::StrCat(name, "weight"), outputs, inputs, 0, outputs)},
                   /*parts=*/1, weights);
  status.Update(loader.Vector(absl::StrCat(name, "bias"), outputs, bias));
  return status;
}

// [1][inputs] and its bias, as floats.
inline absl::Status LoadConfidence(const Checkpoint& checkpoint, int32_t inputs,
                                   std::vector<float>* weights) {
  weights->resize(inputs + 1);
  for (const auto& [name, shape, at] : {std::tuple{"weight", std::vector<int64_t>{1, inputs}, 0},
                                        std::tuple{"bias", std::vector<int64_t>{1}, inputs}}) {
    const absl::StatusOr<const StoredTensor*> tensor =
        checkpoint.Find(absl::StrCat(kConfidenceName, name), shape);
    if (!tensor.ok()) return tensor.status();
    ReadFloats(**tensor, 0, shape.back(), weights->data() + at);
  }
  return absl::OkStatus();
}

// inputs: of the query, key and value heads.
template <typename Matrix>
absl::Status LoadAttention(const Loader<Matrix>& loader, const ModelConfig& c, const Partition& p,
                           const std::string& prefix, int32_t inputs,
                           LayerWeightsOf<Matrix>* layer) {
  const int32_t d = c.head_dim;
  const int32_t q_rows = c.heads * d, kv_rows = c.kv_heads * d;
  const std::vector<MatrixShard> qkv = {
      RowShard(prefix + "q_proj.weight", q_rows, inputs, p.first_head * d, p.heads * d),
      RowShard(prefix + "k_proj.weight", kv_rows, inputs, p.first_kv_head * d, p.kv_heads * d),
      RowShard(prefix + "v_proj.weight", kv_rows, inputs, p.first_kv_head * d, p.kv_heads * d)};
  absl::Status status = loader.Layer(qkv, /*parts=*/1, &layer->qkv);
  if (c.qkv_bias) {
    status.Update(loader.VectorShard(prefix + "q_proj.bias", q_rows, p.first_head * d, p.heads * d,
                                     &layer->qkv_bias));
    for (const char* name : {"k_proj.bias", "v_proj.bias"}) {
      status.Update(loader.VectorShard(prefix + name, kv_rows, p.first_kv_head * d, p.kv_heads * d,
                                       &layer->qkv_bias));
    }
  }
  if (c.qk_norm) {
    status.Update(loader.Vector(prefix + "q_norm.weight", d, &layer->query_norm));
    status.Update(loader.Vector(prefix + "k_norm.weight", d, &layer->key_norm));
  }
  status.Update(loader.Layer(
      {ColumnShard(prefix + "o_proj.weight", c.hidden, q_rows, p.first_head * d, p.heads * d)},
      p.parts, &layer->output));
  if (c.output_bias) {
    status.Update(loader.Vector(prefix + "o_proj.bias", c.hidden, &layer->output_bias));
  }
  return status;
}

template <typename Matrix>
absl::Status LoadMlp(const Loader<Matrix>& loader, const ModelConfig& c, const Partition& p,
                     const std::string& prefix, LayerWeightsOf<Matrix>* layer) {
  const auto features = [&](const std::string& name) {
    return RowShard(prefix + name, c.intermediate, c.hidden, p.first_intermediate, p.intermediate);
  };
  absl::Status status = loader.Layer({features("gate_proj.weight"), features("up_proj.weight")},
                                     /*parts=*/1, &layer->gate_up, /*gated=*/true);
  status.Update(loader.Layer({ColumnShard(prefix + "down_proj.weight", c.hidden, c.intermediate,
                                          p.first_intermediate, p.intermediate)},
                             p.parts, &layer->down));
  if (c.mlp_bias) {
    for (const char* name : {"gate_proj.bias", "up_proj.bias"}) {
      status.Update(loader.VectorShard(prefix + name, c.intermediate, p.first_intermediate,
                                       p.intermediate, &layer->gate_up_bias));
    }
    status.Update(loader.Vector(prefix + "down_proj.bias", c.hidden, &layer->down_bias));
  }
  return status;
}

}  // namespace loading

template <typename Matrix>
absl::StatusOr<ModelWeightsOf<Matrix>> LoadLayers(const Checkpoint& checkpoint,
                                                  const ModelConfig& config,
                                                  const Partition& partition,
                                                  const MatrixFactory<Matrix>& make_matrix) {
  const loading::Loader<Matrix> loader(checkpoint, make_matrix);
  ModelWeightsOf<Matrix> weights;
  for (int32_t i = 0; i < partition.layers; ++i) {
    const std::string prefix = LayerPrefix(checkpoint, config, partition.first_layer + i);
    const int32_t inputs = JoinsStates(config) && i == 0 ? 2 * config.hidden : config.hidden;
    LayerWeightsOf<Matrix> layer;
    absl::Status status =
        loader.Vector(prefix + "input_layernorm.weight", config.hidden, &layer.attention_norm);
    status.Update(
        loading::LoadAttention(loader, config, partition, prefix + "self_attn.", inputs, &layer));
    status.Update(
        loader.Vector(prefix + "post_attention_layernorm.weight", config.hidden, &layer.mlp_norm));
    status.Update(loading::LoadMlp(loader, config, partition, prefix + "mlp.", &layer));
    if (!status.ok()) return status;
    weights.layers.push_back(std::move(layer));
  }
  absl::Status status = loader.Vector(NamesOf(config).norm, config.hidden, &weights.final_norm);
  if (!status.ok()) return status;
  return weights;
}

template <typename Matrix>
absl::StatusOr<Matrix> LoadHead(const Checkpoint& checkpoint, const ModelConfig& config,
                                const Partition& partition,
                                const MatrixFactory<Matrix>& make_matrix) {
  const char* name = config.tied_embeddings ? EmbeddingName(checkpoint, /*tied=*/true) : kHeadName;
  const loading::MatrixShard shard = loading::RowShard(name, config.vocabulary, config.hidden,
                                                       partition.first_token, partition.vocabulary);
  Matrix head;
  absl::Status status =
      loading::Loader<Matrix>(checkpoint, make_matrix).Layer({shard}, /*parts=*/1, &head);
  if (!status.ok()) return status;
  return head;
}

template <typename Matrix>
absl::StatusOr<FuseWeightsOf<Matrix>> LoadFuseWeights(const OpenedDrafter& drafter,
                                                      const ModelConfig& config,
                                                      const MatrixFactory<Matrix>& make_matrix) {
  const StateDrafter& states = *config.states;
  FuseWeightsOf<Matrix> weights;
  if (states.mtp) {
    weights.fuse_norm.resize(config.hidden);
    ReadFloats(*drafter.target_norm, 0, config.hidden, weights.fuse_norm.data());
    weights.epsilon = drafter.target_epsilon;
    return weights;
  }
  weights.epsilon = config.rms_epsilon;
  const auto layers = static_cast<int32_t>(states.layers.size());
  const int32_t inputs = layers * states.target_hidden;
  const Checkpoint& checkpoint = drafter.own.checkpoint;
  const loading::Loader<Matrix> loader(checkpoint, make_matrix);
  absl::Status status =
      loader.Layer({loading::RowShard(kFuseName, config.hidden, inputs, 0, config.hidden)},
                   /*parts=*/1, &weights.fuse);
  if (states.fc_bias) {
    status.Update(loader.Vector(kFuseBiasName, config.hidden, &weights.fuse_bias));
  }
  if (states.norm_before_fc) {
    status.Update(loader.Vector(kFuseNormName, inputs, &weights.fuse_norm));
  }
  for (int32_t i = 0; states.fc_norm && i < layers; ++i) {
    status.Update(loader.Vector(FuseNormName(i), states.target_hidden, &weights.fuse_norm));
  }
  const std::string in = JoinsStates(config) ? LayerPrefix(checkpoint, config, 0) : "";
  status.Update(loader.Vector(in + kStateNormName, config.hidden, &weights.state_norm));
  if (!status.ok()) return status;
  return weights;
}

template <typename Matrix>
absl::StatusOr<MtpWeightsOf<Matrix>> LoadMtpWeights(const OpenedDrafter& drafter,
                                                    const ModelConfig& config,
                                                    const MatrixFactory<Matrix>& make_matrix) {
  const Checkpoint& checkpoint = drafter.own.checkpoint;
  const loading::Loader<Matrix> loader(checkpoint, make_matrix);
  const std::string layer = LayerPrefix(checkpoint, config, 0);
  const int32_t hidden = config.hidden;
  MtpWeightsOf<Matrix> weights;
  absl::Status status = loader.Vector(layer + kMtpTokenNormName, hidden, &weights.token_norm);
  status.Update(loader.Vector(layer + kMtpStateNormName, hidden, &weights.state_norm));
  status.Update(
      loader.Layer({loading::RowShard(layer + kMtpInputName, hidden, 2 * hidden, 0, hidden)},
                   /*parts=*/1, &weights.projection));
  if (!status.ok()) return status;
  return weights;
}

template <typename Matrix>
absl::StatusOr<SequentialWeightsOf<Matrix>> LoadSequentialWeights(
    const Checkpoint& checkpoint, const ModelConfig& config,
    const MatrixFactory<Matrix>& make_matrix) {
  const BlockDrafter& block = *config.states->block;
  const int32_t rank = block.markov_rank, hidden = config.hidden;
  const loading::Loader<Matrix> loader(checkpoint, make_matrix);
  SequentialWeightsOf<Matrix> weights;
  absl::Status status;
  if (block.markov != MarkovKind::kNone) {
    const absl::StatusOr<const StoredTensor*> tokens =
        checkpoint.Find(kMarkovTokensName, {config.vocabulary, rank});
    if (!tokens.ok()) return tokens.status();
    weights.tokens = StoredRows(rank);
    weights.tokens.Add({.tensor = *tokens, .columns = rank, .row_count = config.vocabulary});
    const int32_t count = config.states->draft_vocabulary;
    status = loader.Layer({loading::RowShard(kMarkovScoresName, count, rank, 0, count)},
                          /*parts=*/1, &weights.scores);
  }
  if (block.markov == MarkovKind::kGated) {
    status.Update(loading::LoadBiased(loader, kMarkovGateName, rank, hidden + rank, &weights.joint,
                                      &weights.joint_bias));
  } else if (block.markov == MarkovKind::kRecurrent) {
    status.Update(loading::LoadBiased(loader, kMarkovJointName, 3 * rank, hidden + 2 * rank,
                                      &weights.joint, &weights.joint_bias));
  }
  if (block.confidence) {
    const int32_t inputs = hidden + (block.confidence_reads_markov ? rank : 0);
    status.Update(loading::LoadConfidence(checkpoint, inputs, &weights.confidence));
  }
  if (!status.ok()) return status;
  return weights;
}

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_CHECKPOINT_LOAD_WEIGHTS_H_
