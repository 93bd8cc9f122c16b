#ifndef SPECFABRIC_APP_MODEL_OPTIONS_H_
#define SPECFABRIC_APP_MODEL_OPTIONS_H_

// The flags that say what a model runs on and how its ranks are spread, checked as in options.h.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/config.h"
#include "model/features.h"
#include "model/kv_size.h"
#include "model/rank_model.h"
#include "target/group_leader.h"

namespace specfabric::app {

// flag: the one that names the folder.
absl::Status CheckModelFlags(const std::string& flag, const std::string& model_dir);
// The context that is served: the model's, limited by --max_context. Logs where the two differ.
int LogContext(const std::string& model_dir, const model::ModelConfig& config);
// Checks that the weights of model_dir exist and have the names and shapes that its config.json
// implies. target_dir, here and below: of a draft's model, the target's folder.
absl::Status CheckModelFiles(const std::string& model_dir, const std::string& target_dir = "");
// The same for a model that this process runs; logs notes about its context and files.
absl::Status LogModel(const std::string& model_dir, const std::string& target_dir = "");
// sequences: how many the KV cache holds on CPUs without --kv_blocks.
absl::StatusOr<model::RankOptions> RankOptionsFor(const std::string& flag,
                                                  const std::string& model_dir, int sequences,
                                                  const std::string& target_dir = "");
// For a draft's cache on a GPU without --kv_blocks: no more than `sessions` whole contexts, nor
// than a part of the memory that is left, so that a target has room on the same GPU. After
// RankOptionsFor.
void LimitDraftCache(int sessions, model::KvSizing* sizing);
// Those that --disable_features does not name.
absl::StatusOr<model::Features> FeatureFlags();
// Checks that a target's --model splits into --tensor_parallel and --pipeline_stages.
absl::Status CheckRanks();
// How the ranks are spread over processes.
absl::StatusOr<target::GroupOptions> GroupFlags();

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_MODEL_OPTIONS_H_
