#ifndef SPECFABRIC_MODEL_REFERENCE_ATTENTION_H_
#define SPECFABRIC_MODEL_REFERENCE_ATTENTION_H_

#include "absl/status/status.h"
#include "model/attention.h"

namespace specfabric::model::reference {

// Plain attention, row by row, with libtorch's operations on gathered keys and values.
// out: [rows][heads][head_dim].
absl::Status Attention(const AttentionInputs& inputs, float* out);

}  // namespace specfabric::model::reference

#endif  // SPECFABRIC_MODEL_REFERENCE_ATTENTION_H_
