#ifndef SPECFABRIC_MODEL_CPU_WEIGHTS_H_
#define SPECFABRIC_MODEL_CPU_WEIGHTS_H_

// One rank's shard of a checkpoint, ready to run. Matrices that read the same input are one layer:
// query, key and value; gate and up. A Matrix is whatever runs such a layer, where it runs.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/drafter_tensors.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/stored_rows.h"
#include "model/linear.h"
#include "model/parallel/partition.h"

namespace specfabric::model {

// Biases and norm weights are float32; an absent bias is empty.
template <typename Matrix>
struct LayerWeightsOf {
  std::vector<float> attention_norm, mlp_norm;  // [hidden]
  Matrix qkv;                                   // hidden -> query heads, key heads, value heads
  std::vector<float> qkv_bias;
  std::vector<float> query_norm, key_norm;  // [head_dim]
  Matrix output;                            // heads -> hidden, row-parallel
  std::vector<float> output_bias;           // [hidden], whole on every rank
  Matrix gate_up;                           // hidden -> gate features, up features
  std::vector<float> gate_up_bias;
  Matrix down;                   // intermediate -> hidden, row-parallel
  std::vector<float> down_bias;  // [hidden], whole on every rank
};

template <typename Matrix>
struct ModelWeightsOf {
  std::vector<LayerWeightsOf<Matrix>> layers;
  std::vector<float> final_norm;  // [hidden]
  Matrix head;                    // hidden -> this rank's vocabulary
};

// What a drafter that reads hidden states fuses them with (StateDrafter).
template <typename Matrix>
struct FuseWeightsOf {
  Matrix fuse;  // layers * target_hidden -> hidden; null: of an MTP drafter
  std::vector<float> fuse_bias;
  // The norms over runs of fc's inputs, one behind the other: of one run, of one a layer, or none.
  // Of an MTP drafter the target's final norm, of its last states.
  std::vector<float> fuse_norm;
  float epsilon = 0;  // of the norms
  // [hidden], of what fc gives: what EAGLE-3's first layer reads, and block drafters' fused states.
  std::vector<float> state_norm;
};

// What an MTP drafter joins a state and an embedding with (MtpDrafter).
template <typename Matrix>
struct MtpWeightsOf {
  std::vector<float> token_norm, state_norm;  // [hidden]
  Matrix projection;                          // 2 * hidden -> hidden
};

// The head that a block drafter may have beside its output head (BlockDrafter::sequential).
template <typename Matrix>
struct SequentialWeightsOf {
  StoredRows tokens{0};  // the embeddings of the tokens before, [vocabulary][rank]; or empty
  Matrix scores;         // rank -> draft vocabulary
  // kGated: of [output; embedding]; kRecurrent: of [state; embedding; output].
  Matrix joint;
  std::vector<float> joint_bias;
  std::vector<float> confidence;  // [hidden (+ rank)], and the bias behind it; or empty
};

template <typename Matrix>
using MatrixFactory =
    std::function<absl::StatusOr<Matrix>(const LinearShape& shape, const StoredRows& rows)>;

// Everything but the embedding and the head. Errors are those of Checkpoint::Find and of the
// factory. Defined for the matrices of CPUs and of GPUs (load_weights.h), as are LoadHead,
// LoadFuseWeights, LoadMtpWeights and LoadSequentialWeights.
template <typename Matrix>
absl::StatusOr<ModelWeightsOf<Matrix>> LoadLayers(const Checkpoint& checkpoint,
                                                  const ModelConfig& config,
                                                  const Partition& partition,
                                                  const MatrixFactory<Matrix>& make_matrix);

// The head, made of the embedding if `config` ties them; its tied_embeddings is as OpenCheckpoint
// says.
template <typename Matrix>
absl::StatusOr<Matrix> LoadHead(const Checkpoint& checkpoint, const ModelConfig& config,
                                const Partition& partition,
                                const MatrixFactory<Matrix>& make_matrix);

template <typename Matrix>
absl::StatusOr<FuseWeightsOf<Matrix>> LoadFuseWeights(const OpenedDrafter& drafter,
                                                      const ModelConfig& config,
                                                      const MatrixFactory<Matrix>& make_matrix);

template <typename Matrix>
absl::StatusOr<MtpWeightsOf<Matrix>> LoadMtpWeights(const OpenedDrafter& drafter,
                                                    const ModelConfig& config,
                                                    const MatrixFactory<Matrix>& make_matrix);

template <typename Matrix>
absl::StatusOr<SequentialWeightsOf<Matrix>> LoadSequentialWeights(
    const Checkpoint& checkpoint, const ModelConfig& config,
    const MatrixFactory<Matrix>& make_matrix);

// The embedding of this rank's tokens, [tokens][hidden].
absl::StatusOr<StoredRows> FindEmbedding(const Checkpoint& checkpoint, const ModelConfig& config,
                                         const Partition& partition);

using LayerWeights = LayerWeightsOf<std::unique_ptr<Linear>>;
using ModelWeights = ModelWeightsOf<std::unique_ptr<Linear>>;
using FuseWeights = FuseWeightsOf<std::unique_ptr<Linear>>;
using MtpWeights = MtpWeightsOf<std::unique_ptr<Linear>>;

// The embedding rows of this rank's tokens, [tokens][hidden], in the model's dtype.
class EmbeddingTable {
 public:
  EmbeddingTable() = default;
  EmbeddingTable(const StoredRows& rows, DataType dtype);
  void Get(int32_t token, float* row) const;

 private:
  void Set(int32_t token, const float* row);

  int32_t hidden_ = 0;
  std::vector<float> float32_;
  std::vector<uint16_t> bfloat16_;
};

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_CPU_WEIGHTS_H_
