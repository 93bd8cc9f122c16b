#ifndef SPECFABRIC_TESTS_MODEL_GROUP_H_
#define SPECFABRIC_TESTS_MODEL_GROUP_H_

// A tensor-parallel group of threads for tests, and the batches they run.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/parallel/communicator.h"
#include "model/rank_model.h"

namespace specfabric::model {

// Whole rows of logits, [rows][vocabulary].
using LogitRows = std::vector<std::vector<float>>;

// Makes one rank's model; that of CPUs if not said otherwise.
using RankLoader = std::function<absl::StatusOr<std::unique_ptr<RankModel>>(
    const std::string& model_dir, const RankOptions& options, Communicator* communicator)>;

class TestGroup {
 public:
  // Every rank loads in a thread of its own.
  static absl::StatusOr<TestGroup> Load(const std::string& model_dir, const RankOptions& options,
                                        int ranks, const RankLoader& load = {});
  // Of ranks that meet by these.
  static absl::StatusOr<TestGroup> Load(const std::string& model_dir, const RankOptions& options,
                                        std::vector<std::unique_ptr<Communicator>> communicators,
                                        const RankLoader& load = {});

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
