#include "model/weights.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model/bfloat16.h"

namespace specfabric::model {
namespace {

// A rectangle of a stored matrix: outputs (rows) and inputs (columns) of this rank.
struct MatrixShard {
  std::string name;
  int32_t rows = 0, columns = 0;  // of the whole matrix
  int32_t first_row = 0, row_count = 0;
  int32_t first_column = 0, column_count = 0;
};

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const LinearFactory& make_linear)
      : checkpoint_(checkpoint), make_linear_(make_linear) {}

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
  absl::Status Layer(const std::vector<MatrixShard>& shards, int32_t parts,
                     std::unique_ptr<Linear>* out) const {
    std::vector<const StoredTensor*> tensors;
    LinearShape shape{.outputs = 0, .inputs = shards.front().column_count, .parts = parts};
    for (const MatrixShard& shard : shards) {
      absl::StatusOr<const StoredTensor*> tensor =
          checkpoint_.Find(shard.name, {shard.rows, shard.columns});
      if (!tensor.ok()) return tensor.status();
      tensors.push_back(*tensor);
      shape.outputs += shard.row_count;
    }
    const WeightReader read = [&](int32_t output, float* weights) {
      size_t i = 0;
      while (output >= shards[i].row_count) output -= shards[i++].row_count;
      const MatrixShard& shard = shards[i];
      const int64_t first = int64_t{shard.first_row + output} * shard.columns + shard.first_column;
      ReadFloats(*tensors[i], first, shard.column_count, weights);
    };
    absl::StatusOr<std::unique_ptr<Linear>> linear = make_linear_(shape, read);
    if (!linear.ok()) return linear.status();
    *out = *std::move(linear);
    return absl::OkStatus();
  }

 private:
  const Checkpoint& checkpoint_;
  const LinearFactory& make_linear_;
};

MatrixShard RowShard(const std::string& name, int32_t rows, int32_t columns, int32_t first,
                     int32_t count) {
  return {name, rows, columns, first, count, 0, columns};
}

MatrixShard ColumnShard(const std::string& name, int32_t rows, int32_t columns, int32_t first,
                        int32_t count) {
  return {name, rows, columns, 0, rows, first, count};
}

absl::Status LoadAttention(const Loader& loader, const ModelConfig& c, const Partition& p,
                           const std::string& prefix, LayerWeights* layer) {
  const int32_t d = c.head_dim;
  const int32_t q_rows = c.heads * d, kv_rows = c.kv_heads * d;
  const std::vector<MatrixShard> qkv = {
      RowShard(prefix + "q_proj.weight", q_rows, c.hidden, p.first_head * d, p.heads * d),
      RowShard(prefix + "k_proj.weight", kv_rows, c.hidden, p.first_kv_head * d, p.kv_heads * d),
      RowShard(prefix + "v_proj.weight", kv_rows, c.hidden, p.first_kv_head * d, p.kv_heads * d)};
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

absl::Status LoadMlp(const Loader& loader, const ModelConfig& c, const Partition& p,
                     const std::string& prefix, LayerWeights* layer) {
  const auto features = [&](const std::string& name) {
    return RowShard(prefix + name, c.intermediate, c.hidden, p.first_intermediate, p.intermediate);
  };
  absl::Status status = loader.Layer({features("gate_proj.weight"), features("up_proj.weight")},
                                     /*parts=*/1, &layer->gate_up);
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

absl::StatusOr<EmbeddingTable> LoadEmbedding(const Checkpoint& checkpoint, const ModelConfig& c,
                                             const Partition& p, DataType dtype,
                                             const std::string& name) {
  absl::StatusOr<const StoredTensor*> tensor = checkpoint.Find(name, {c.vocabulary, c.hidden});
  if (!tensor.ok()) return tensor.status();
  EmbeddingTable table(p.vocabulary, c.hidden, dtype);
  std::vector<float> row(c.hidden);
  for (int32_t i = 0; i < p.vocabulary; ++i) {
    ReadFloats(**tensor, int64_t{p.first_token + i} * c.hidden, c.hidden, row.data());
    table.Set(i, row.data());
  }
  return table;
}

}  // namespace

EmbeddingTable::EmbeddingTable(int32_t tokens, int32_t hidden, DataType dtype) : hidden_(hidden) {
  const size_t size = static_cast<size_t>(tokens) * hidden;
  if (dtype == DataType::kFloat32) {
    float32_.resize(size);
  } else {
    bfloat16_.resize(size);
  }
}

void EmbeddingTable::Set(int32_t token, const float* row) {
  const size_t first = static_cast<size_t>(token) * hidden_;
  if (!float32_.empty()) {
    std::copy(row, row + hidden_, float32_.begin() + first);
  } else {
    std::transform(row, row + hidden_, bfloat16_.begin() + first, RoundToBFloat16);
  }
}

void EmbeddingTable::Get(int32_t token, float* row) const {
  const size_t first = static_cast<size_t>(token) * hidden_;
  if (!float32_.empty()) {
    std::copy_n(float32_.begin() + first, hidden_, row);
  } else {
    std::transform(bfloat16_.begin() + first, bfloat16_.begin() + first + hidden_, row,
                   WidenBFloat16);
  }
}

absl::StatusOr<ModelWeights> LoadWeights(const Checkpoint& checkpoint, const ModelConfig& config,
                                         const Partition& partition, DataType dtype,
                                         const LinearFactory& make_linear) {
  constexpr char kEmbedding[] = "model.embed_tokens.weight";
  const Loader loader(checkpoint, make_linear);
  ModelWeights weights;
  absl::StatusOr<EmbeddingTable> embedding =
      LoadEmbedding(checkpoint, config, partition, dtype, kEmbedding);
  if (!embedding.ok()) return embedding.status();
  weights.embedding = *std::move(embedding);

  for (int32_t i = 0; i < config.layers; ++i) {
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    LayerWeights layer;
    absl::Status status =
        loader.Vector(prefix + "input_layernorm.weight", config.hidden, &layer.attention_norm);
    status.Update(LoadAttention(loader, config, partition, prefix + "self_attn.", &layer));
    status.Update(
        loader.Vector(prefix + "post_attention_layernorm.weight", config.hidden, &layer.mlp_norm));
    status.Update(LoadMlp(loader, config, partition, prefix + "mlp.", &layer));
    if (!status.ok()) return status;
    weights.layers.push_back(std::move(layer));
  }

  absl::Status status = loader.Vector("model.norm.weight", config.hidden, &weights.final_norm);
  const MatrixShard head =
      RowShard(config.tied_embeddings ? kEmbedding : "lm_head.weight", config.vocabulary,
               config.hidden, partition.first_token, partition.vocabulary);
  status.Update(loader.Layer({head}, /*parts=*/1, &weights.head));
  if (!status.ok()) return status;
  return weights;
}

}  // namespace specfabric::model
