#ifndef SPECFABRIC_BENCH_MODEL_BENCH_MODEL_H_
#define SPECFABRIC_BENCH_MODEL_BENCH_MODEL_H_

// What benchmarks of passes run.

#include <numeric>

#include "absl/types/span.h"
#include "base/clock.h"
#include "model/batch.h"
#include "model/checkpoint/config.h"
#include "model/parallel/communicator.h"

namespace specfabric::model {

// 11 M parameters.
inline ModelConfig BenchConfig() {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocabulary = 4096;
  config.hidden = 384;
  config.intermediate = 1024;
  config.layers = 6;
  config.heads = config.kv_heads = 6;
  config.head_dim = 64;
  config.context = 4096;
  config.tied_embeddings = true;
  return config;
}

// Whether all ranks go on, until `end` (0: always) by the clock of the first, which decides.
inline bool GoOn(Communicator& ranks, base::Nanos end) {
  float over = ranks.rank() == 0 && end != 0 && base::Now() > end ? 1.0f : 0.0f;
  ranks.AllReduceSum(absl::MakeSpan(&over, 1));
  return over == 0.0f;
}

// A chain of rows after `context` tokens in the first `blocks` blocks; all logits are wanted.
inline Batch ChainOf(int rows, int context, int blocks) {
  Batch batch;
  batch.tokens.assign(rows, 7);
  batch.positions.resize(rows);
  std::iota(batch.positions.begin(), batch.positions.end(), context);
  batch.blocks.resize(blocks);
  std::iota(batch.blocks.begin(), batch.blocks.end(), 0);
  batch.logit_rows.resize(rows);
  std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), 0);
  batch.sequences.push_back({.kv_len = context, .row_count = rows, .block_count = blocks});
  return batch;
}

}  // namespace specfabric::model

#endif  // SPECFABRIC_BENCH_MODEL_BENCH_MODEL_H_
