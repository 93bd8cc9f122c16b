#ifndef SPECFABRIC_MODEL_PARTITION_H_
#define SPECFABRIC_MODEL_PARTITION_H_

// Which part of a model a tensor-parallel rank holds: whole KV heads with the query heads that
// share them, a run of the MLP's intermediate features, and a run of the vocabulary (of unequal
// lengths if it does not divide).

#include <cstdint>

#include "absl/status/status.h"
#include "model/config.h"

namespace specfabric::model {

struct Partition {
  int32_t ranks = 1;
  int32_t parts = 1;  // of this rank's row-parallel inputs, see linear.h
  int32_t heads = 0, first_head = 0;
  int32_t kv_heads = 0, first_kv_head = 0;
  int32_t intermediate = 0, first_intermediate = 0;
  int32_t vocabulary = 0, first_token = 0;
};

// The number of parts of a model's row-parallel inputs, fixed by the model alone: the largest power
// of two, at most 8, that divides both the KV heads and the intermediate features.
int32_t CanonicalParts(const ModelConfig& config);

// `ranks` must be one that CheckTensorParallel (rank_model.h) allows.
Partition MakePartition(const ModelConfig& config, int32_t ranks, int32_t rank);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_PARTITION_H_
