#ifndef SPECFABRIC_BENCH_MODEL_RANDOM_MODEL_H_
#define SPECFABRIC_BENCH_MODEL_RANDOM_MODEL_H_

// Models of real shapes for benchmarks, without a checkpoint on disk: "random:llama-1b" and the
// like are checkpoints of random weights in a file that lies in memory alone, which the usual
// loader reads. The weights are a fixed function of their place, so that two processes have the
// same.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "model/checkpoint/config.h"

namespace specfabric::model {

// A checkpoint folder: one that exists, or one of random weights that lasts as long as this object.
class BenchCheckpoint {
 public:
  // `model`: a folder, or random:llama-1b, random:llama-8b, random:qwen3-8b, random:tiny (the
  // shapes of Llama 3.2 1B, Llama 3.1 8B and Qwen3 8B, in bfloat16). InvalidArgument: another name.
  // ResourceExhausted: no memory. It takes as much host memory as the weights; once they are loaded
  // it may be destroyed.
  static absl::StatusOr<std::unique_ptr<BenchCheckpoint>> Open(const std::string& model);
  ~BenchCheckpoint();
  BenchCheckpoint(const BenchCheckpoint&) = delete;
  BenchCheckpoint& operator=(const BenchCheckpoint&) = delete;

  const std::string& folder() const { return folder_; }

 private:
  BenchCheckpoint() = default;

  std::string folder_;
  int file_ = -1;  // the weights; -1: the folder is the user's
};

// Bytes of the weights that a pass reads once: all matrices of the layers and the output head.
int64_t PassWeightBytes(const ModelConfig& config, DataType dtype);
// Those of the output head.
int64_t HeadBytes(const ModelConfig& config, DataType dtype);

}  // namespace specfabric::model

#endif  // SPECFABRIC_BENCH_MODEL_RANDOM_MODEL_H_
