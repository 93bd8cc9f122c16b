#ifndef SPECFABRIC_MODEL_WEIGHTS_H_
#define SPECFABRIC_MODEL_WEIGHTS_H_

// One rank's shard of a checkpoint, ready to run. Matrices that read the same input are one layer:
// query, key and value; gate and up.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/config.h"
#include "model/linear.h"
#include "model/partition.h"
#include "model/safetensors.h"

namespace specfabric::model {

// Biases and norm weights are float32; an absent bias is empty.
struct LayerWeights {
  std::vector<float> attention_norm, mlp_norm;  // [hidden]
  std::unique_ptr<Linear> qkv;                  // hidden -> query heads, key heads, value heads
  std::vector<float> qkv_bias;
  std::vector<float> query_norm, key_norm;  // [head_dim]
  std::unique_ptr<Linear> output;           // heads -> hidden, row-parallel
  std::vector<float> output_bias;           // [hidden], whole on every rank
  std::unique_ptr<Linear> gate_up;          // hidden -> gate features, up features
  std::vector<float> gate_up_bias;
  std::unique_ptr<Linear> down;  // intermediate -> hidden, row-parallel
  std::vector<float> down_bias;  // [hidden], whole on every rank
};

// The embedding rows of this rank's tokens, [tokens][hidden], in the model's dtype.
class EmbeddingTable {
 public:
  EmbeddingTable() = default;
  EmbeddingTable(int32_t tokens, int32_t hidden, DataType dtype);
  void Set(int32_t token, const float* row);
  void Get(int32_t token, float* row) const;

 private:
  int32_t hidden_ = 0;
  std::vector<float> float32_;
  std::vector<uint16_t> bfloat16_;
};

struct ModelWeights {
  EmbeddingTable embedding;
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // [hidden]
  std::unique_ptr<Linear> head;   // hidden -> this rank's vocabulary
};

using LinearFactory = std::function<absl::StatusOr<std::unique_ptr<Linear>>(
    const LinearShape& shape, const WeightReader& read)>;

// Errors are those of Checkpoint::Find.
absl::StatusOr<ModelWeights> LoadWeights(const Checkpoint& checkpoint, const ModelConfig& config,
                                         const Partition& partition, DataType dtype,
                                         const LinearFactory& make_linear);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_WEIGHTS_H_
