#ifndef SPECFABRIC_TESTS_MODEL_GROUP_H_
#define SPECFABRIC_TESTS_MODEL_GROUP_H_

// A tensor-parallel group of threads for tests, and the batches they run.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/communicator.h"
#include "model/rank_model.h"

namespace specfabric::model {

// Whole rows of logits, [rows][vocabulary].
using LogitRows = std::vector<std::vector<float>>;

class TestGroup {
 public:
  static absl::StatusOr<TestGroup> Load(const std::string& model_dir, const RankOptions& options,
                                        int ranks);

  RankModel& rank(int i) { return *models_[i]; }
  const ModelConfig& config() const { return models_.front()->config(); }
  // Runs the batch on all ranks, each in its own thread, and joins the shards.
  absl::StatusOr<LogitRows> Forward(const Batch& batch);
  void MoveKv(const std::vector<KvMove>& moves);

 private:
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<RankModel>> models_;
};

// Adds a causal sequence (a prefill chunk) to the batch; all its rows' logits are wanted.
void AddChain(Batch* batch, const std::vector<int32_t>& tokens, int32_t kv_len,
              const std::vector<int32_t>& blocks);

// Adds a tree: parents[i] is the parent of node i, -1 for node 0. All rows' logits are wanted.
void AddTree(Batch* batch, const std::vector<int32_t>& tokens, const std::vector<int32_t>& parents,
             int32_t kv_len, const std::vector<int32_t>& blocks);

}  // namespace specfabric::model

#endif  // SPECFABRIC_TESTS_MODEL_GROUP_H_
