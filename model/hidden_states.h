#ifndef SPECFABRIC_MODEL_HIDDEN_STATES_H_
#define SPECFABRIC_MODEL_HIDDEN_STATES_H_

// What targets that keep hidden states, and drafters that read them, have in common on all devices.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "model/batch.h"
#include "model/checkpoint/config.h"
#include "model/parallel/partition.h"

namespace specfabric::model {

// Which of the hidden states that a pass kept to copy (RankModel::CopyStates), and where to.
struct StateCopy {
  absl::Span<const int32_t> rows;     // of the pass
  absl::Span<const int32_t> columns;  // indices of the boundaries that are kept
  uint16_t* to = nullptr;             // [rows][columns][hidden] in bfloat16
  bool on_device = false;             // `to` is in the memory of the model's device, not the host's
};

// Whether a model of so many layers, in so many pipeline stages, can keep the states at these
// boundaries; errors are RankModel::KeepStates's.
absl::Status CheckBoundaries(absl::Span<const int32_t> boundaries, int32_t layers, int32_t stages);

// InvalidArgument: a drafter that reads hidden states in a group of several ranks.
absl::Status CheckDrafterShape(const ModelConfig& config, const GroupShape& shape);

// InvalidArgument: not so many values as the states of `rows` positions have that a drafter reads.
absl::Status CheckStateRows(const StateDrafter& drafter, size_t values, int rows);

// InvalidArgument: the batch does not have fused states (Batch::states) as far as they are wanted.
absl::Status CheckFusedStates(const ModelConfig& config, bool wanted, const Batch& batch);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_HIDDEN_STATES_H_
