#ifndef SPECFABRIC_TESTS_MODEL_CHECKPOINT_WRITER_H_
#define SPECFABRIC_TESTS_MODEL_CHECKPOINT_WRITER_H_

// Writes small random checkpoints for tests and benchmarks.

#include <cstdint>
#include <string>
#include <vector>

#include "model/checkpoint/config.h"
#include "tests/base/temp_dir.h"

namespace specfabric::model {

using base::TempDir;

void WriteFile(const std::string& path, const std::string& content);
std::string ReadFile(const std::string& path);

// Tensors are stored as float32 or, rounded, as bfloat16; those with integers as 64-bit ones.
struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
  std::vector<int64_t> integers = {};
};
void WriteSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                      DataType dtype);

// The tensors that a model of this configuration has, normal around 0 (around 1 for norm weights),
// scaled so that activations keep their size from layer to layer. A drafter that reads hidden
// states has an embedding and a head of its own.
std::vector<NamedTensor> RandomTensors(const ModelConfig& config, uint32_t seed);

// config.json and model.safetensors.
void WriteCheckpoint(const std::string& dir, const ModelConfig& config, uint32_t seed);

// A small model whose sizes are multiples of nothing convenient.
ModelConfig OddConfig();
// An EAGLE-3 drafter for it.
ModelConfig OddDrafterConfig();
// A block drafter: DFlash, or DSpark with a head of this kind. The layer in the middle is causal
// and has a window.
ModelConfig OddBlockConfig(MarkovKind markov);

}  // namespace specfabric::model

#endif  // SPECFABRIC_TESTS_MODEL_CHECKPOINT_WRITER_H_
