#ifndef SPECFABRIC_MODEL_PARALLEL_MICRO_BATCHES_H_
#define SPECFABRIC_MODEL_PARALLEL_MICRO_BATCHES_H_

// A batch cut into runs of its rows, for pipeline stages that work on different runs at once
// (GPipe, arXiv:1811.06965).

#include <vector>

#include "model/batch.h"

namespace specfabric::model {

// Filling the pipeline then takes a stage no more than about a fifth of a pass of many rows.
constexpr int kMicroBatchesPerStage = 4;

// The batches, each a run of the rows of `batch`, whose passes in this order write and see what one
// pass of `batch` would. At most `max_parts`, of about equal numbers of rows and, but where a tree
// is in the way, of at least `min_rows`; at least one. A chain is cut anywhere, a tree nowhere.
// Logit rows stay in order: those of the parts, one after the other, are those of the batch.
// `batch` must be one that MakeAttentionPlan allows; max_parts and min_rows at least 1.
std::vector<Batch> SplitBatch(const Batch& batch, int max_parts, int min_rows);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_PARALLEL_MICRO_BATCHES_H_
