#ifndef SPECFABRIC_DRAFT_DRAFT_SERVICE_H_
#define SPECFABRIC_DRAFT_DRAFT_SERVICE_H_

// One draft worker: the engine thread, and the link that connects it to targets.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "draft/draft_engine.h"
#include "metrics/registry.h"
#include "model/rank_model.h"
#include "transport/fabric.h"

namespace specfabric::draft {

struct DraftServiceOptions {
  std::string model_dir;
  model::RankOptions rank;
  DraftEngineOptions engine;  // block numbers and context are filled in from the model
  std::string model_name;
  uint64_t tokenizer_fingerprint = 0;
  std::string listen = "127.0.0.1:0";
  transport::SharedListenSocket socket;  // already listens on `listen`; may be null
  transport::FabricOptions fabric;
  // Draft probabilities are computed in, and sent from, the memory of the rank's GPU, if there is
  // one that UCX can use.
  bool gpu_draft_probs = false;
  // And hidden states are received there.
  bool gpu_states = false;
};

class DraftService {
 public:
  // Loads the model and starts to listen. Errors are LoadDraftConfig's, ServedContext's,
  // RankModel::Load's, and Link::Create's and Start's.
  static absl::StatusOr<std::unique_ptr<DraftService>> Start(const DraftServiceOptions& options,
                                                             metrics::Registry* registry);
  ~DraftService();

  const std::string& listen_address() const;
  const model::ModelConfig& config() const;
  bool ready() const;  // false while draining
  // The session table as JSON, for /debug/sessions. Asks the engine thread, for at most 2 s;
  // {"error": ...} if it does not answer. Any thread.
  std::string DebugSessions();
  // Answers `draining` from now on, tells the targets, and waits, for at most `timeout`, for the
  // trees that are growing; then up to 1 s until they are sent. Any thread.
  void Drain(base::Nanos timeout);

 private:
  class Impl;
  explicit DraftService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace specfabric::draft

#endif  // SPECFABRIC_DRAFT_DRAFT_SERVICE_H_
