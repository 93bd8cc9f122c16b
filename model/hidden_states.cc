#include "model/hidden_states.h"

#include "absl/strings/str_cat.h"

namespace specfabric::model {

absl::Status CheckBoundaries(absl::Span<const int32_t> boundaries, int32_t layers, int32_t stages) {
  if (stages > 1 && !boundaries.empty()) {
    return absl::UnimplementedError(absl::StrCat("hidden states of a model in ", stages,
                                                 " pipeline stages are not supported; allowed: 1"));
  }
  for (const int32_t boundary : boundaries) {
    if (boundary >= 0 && boundary <= layers) continue;
    return absl::InvalidArgumentError(absl::StrCat("hidden states at boundary ", boundary, " of ",
                                                   layers, " layers; allowed: 0 to ", layers));
  }
  return absl::OkStatus();
}

absl::Status CheckDrafterShape(const ModelConfig& config, const GroupShape& shape) {
  if (!config.states || shape.ranks() == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(shape.ranks(), " ranks for a drafter of kind ",
                                                 Name(config.states->kind), "; allowed: 1"));
}

absl::Status CheckStateRows(const StateDrafter& drafter, size_t values, int rows) {
  const size_t width = drafter.layers.size() * drafter.target_hidden;
  if (rows >= 0 && values == rows * width) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("hidden states of ", values, " values for ", rows,
                                                 " rows; allowed: ", width, " a row"));
}

absl::Status CheckFusedStates(const ModelConfig& config, bool wanted, const Batch& batch) {
  const size_t values = wanted ? batch.tokens.size() * config.hidden : 0;
  if (batch.states.size() == values) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("fused states of ", batch.states.size(),
                                                 " values for ", batch.rows(), " rows of a ",
                                                 config.architecture, "; allowed: ", values));
}

}  // namespace specfabric::model
