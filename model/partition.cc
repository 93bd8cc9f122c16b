#include "model/partition.h"

#include "absl/strings/str_cat.h"
#include "model/linear.h"
#include "model/rank_model.h"

namespace specfabric::model {

int32_t CanonicalParts(const ModelConfig& config) {
  int32_t parts = kMaxParts;
  while (config.kv_heads % parts != 0 || config.intermediate % parts != 0) parts /= 2;
  return parts;
}

Partition MakePartition(const ModelConfig& config, int32_t ranks, int32_t rank) {
  Partition p;
  p.ranks = ranks;
  p.parts = CanonicalParts(config) / ranks;
  p.heads = config.heads / ranks;
  p.first_head = p.heads * rank;
  p.kv_heads = config.kv_heads / ranks;
  p.first_kv_head = p.kv_heads * rank;
  p.intermediate = config.intermediate / ranks;
  p.first_intermediate = p.intermediate * rank;
  const auto token_bound = [&](int64_t r) {
    return static_cast<int32_t>(config.vocabulary * r / ranks);
  };
  p.first_token = token_bound(rank);
  p.vocabulary = token_bound(rank + 1) - p.first_token;
  return p;
}

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

}  // namespace specfabric::model
