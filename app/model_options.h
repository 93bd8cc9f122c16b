#ifndef SPECFABRIC_APP_MODEL_OPTIONS_H_
#define SPECFABRIC_APP_MODEL_OPTIONS_H_

// The flags that say what a model runs on and how its ranks are spread, checked as in options.h.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/config.h"
#include "model/rank_model.h"
#include "target/group_leader.h"

namespace specfabric::app {

// flag: the one that names the folder.
absl::Status CheckModelFlags(const std::string& flag, const std::string& model_dir);
// The context that --max_context leaves of a model's; says in the log where that is not the flag's
// or not the model's own.
int LogContext(const std::string& model_dir, const model::ModelConfig& config);
// Whether the weights of model_dir are there and are what its config.json says, by their names and
// shapes.
absl::Status CheckModelFiles(const std::string& model_dir);
// The same, of a model that this process runs, and what is to be said about its context and files.
absl::Status LogModel(const std::string& model_dir);
// sequences: that are to fit in the cache, where --kv_blocks says nothing.
absl::StatusOr<model::RankOptions> RankOptionsFor(const std::string& flag,
                                                  const std::string& model_dir, int sequences);
// Of a target: whether --model splits into --tensor_parallel and --pipeline_stages.
absl::Status CheckRanks();
// How the ranks are spread over processes.
absl::StatusOr<target::GroupOptions> GroupFlags();

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_MODEL_OPTIONS_H_
