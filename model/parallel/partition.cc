#include "model/parallel/partition.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/linear.h"
#include "model/rank_model.h"

namespace specfabric::model {

absl::StatusOr<GroupShape> ShapeOf(int32_t ranks, int32_t stages) {
  if (stages >= 1 && ranks % stages == 0) return GroupShape{ranks / stages, stages};
  return absl::InvalidArgumentError(
      absl::StrCat(stages, " pipeline stages of ", ranks, " ranks; allowed: divisors"));
}

int32_t CanonicalParts(const ModelConfig& config) {
  int32_t parts = kMaxParts;
  while (config.kv_heads % parts != 0 || config.intermediate % parts != 0) parts /= 2;
  return parts;
}

Partition MakePartition(const ModelConfig& config, const GroupShape& shape, int32_t rank) {
  const auto bound = [](int64_t whole, int64_t parts, int64_t part) {
    return static_cast<int32_t>(whole * part / parts);
  };
  Partition p;
  p.first_token = bound(config.vocabulary, shape.ranks(), rank);
  p.vocabulary = bound(config.vocabulary, shape.ranks(), rank + 1) - p.first_token;

  const int32_t ranks = shape.tensor_parallel;
  p.stages = shape.stages;
  p.stage = rank / ranks;
  p.first_layer = bound(config.layers, p.stages, p.stage);
  p.layers = bound(config.layers, p.stages, p.stage + 1) - p.first_layer;
  rank %= ranks;
  p.ranks = ranks;
  p.parts = CanonicalParts(config) / ranks;
  p.heads = config.heads / ranks;
  p.first_head = p.heads * rank;
  p.kv_heads = config.kv_heads / ranks;
  p.first_kv_head = p.kv_heads * rank;
  p.intermediate = config.intermediate / ranks;
  p.first_intermediate = p.intermediate * rank;
  return p;
}

namespace {

absl::Status CheckTensorParallel(const ModelConfig& config, int ranks) {
  const int32_t parts = CanonicalParts(config);
  std::string allowed = "1";
  for (int32_t n = 1; n <= parts && n <= config.vocabulary; n *= 2) {
    if (n == ranks) return absl::OkStatus();
    if (n > 1) absl::StrAppend(&allowed, ", ", n);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      ranks, " tensor-parallel ranks for a model with ", config.kv_heads, " KV heads and ",
      config.intermediate, " intermediate features; allowed: ", allowed));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> SplitStages(Communicator* group, int stages) {
  if (stages == 1) return nullptr;
  std::unique_ptr<Communicator> stage = group->Split(stages);
  if (stage != nullptr) return stage;
  return absl::InvalidArgumentError(
      "the ranks of a pipeline stage are in several processes; allowed: whole stages in each");
}

absl::Status CheckShape(const ModelConfig& config, const GroupShape& shape) {
  absl::Status split = CheckTensorParallel(config, shape.tensor_parallel);
  if (!split.ok()) return split;
  const int32_t most = std::min(config.layers, config.vocabulary / shape.tensor_parallel);
  if (shape.stages >= 1 && shape.stages <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(shape.stages, " pipeline stages for a model with ",
                                                 config.layers, " layers; allowed: 1 to ", most));
}

}  // namespace specfabric::model
