#ifndef SPECFABRIC_MODEL_PARALLEL_PARTITION_H_
#define SPECFABRIC_MODEL_PARALLEL_PARTITION_H_

// Which part of a model a tensor-parallel rank holds: whole KV heads with the query heads that
// share them, a run of the MLP's intermediate features, and a run of the vocabulary (of unequal
// lengths if it does not divide). A group of several pipeline stages has as many ranks in each, and
// each stage a run of the layers. The vocabulary is spread over the ranks of all stages: they share
// the output head's work, and verify as one group.

#include <cstdint>

#include "absl/status/statusor.h"
#include "model/checkpoint/config.h"

namespace specfabric::model {

struct GroupShape {
  int32_t tensor_parallel = 1;  // ranks of a stage
  int32_t stages = 1;
  // The first ranks are the first stage's.
  int32_t ranks() const { return tensor_parallel * stages; }
};

struct Partition {
  int32_t ranks = 1;  // of this rank's stage
  int32_t stage = 0, stages = 1;
  int32_t layers = 0, first_layer = 0;
  int32_t parts = 1;  // of this rank's row-parallel inputs, see linear.h
  int32_t heads = 0, first_head = 0;
  int32_t kv_heads = 0, first_kv_head = 0;
  int32_t intermediate = 0, first_intermediate = 0;
  int32_t vocabulary = 0, first_token = 0;
};

// `ranks` as so many stages. InvalidArgument: they do not divide.
absl::StatusOr<GroupShape> ShapeOf(int32_t ranks, int32_t stages);

// The number of parts of a model's row-parallel inputs, fixed by the model alone: the largest power
// of two, at most 8, that divides both the KV heads and the intermediate features.
int32_t CanonicalParts(const ModelConfig& config);

// `shape` must be one that CheckShape (rank_model.h) allows.
Partition MakePartition(const ModelConfig& config, const GroupShape& shape, int32_t rank);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_PARALLEL_PARTITION_H_
