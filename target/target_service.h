#ifndef SPECFABRIC_TARGET_TARGET_SERVICE_H_
#define SPECFABRIC_TARGET_TARGET_SERVICE_H_

// One target group as a process sees it: ranks, leader thread, watchdog and the link that joins
// them to gateways and drafts.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "metrics/registry.h"
#include "model/checkpoint/config.h"
#include "scheduler/routing/draft_router.h"
#include "scheduler/scheduler.h"
#include "speculation/drafter_choice.h"
#include "target/group_leader.h"
#include "target/rank_group.h"
#include "trace/recorder.h"
#include "transport/fabric.h"

namespace specfabric::target {

struct TargetServiceOptions {
  RankGroupOptions ranks;
  GroupOptions group;  // of the processes that hold the ranks
  scheduler::SchedulerOptions
      scheduler;  // vocabulary and block numbers are filled in from the model
  std::string model_name;
  uint64_t tokenizer_fingerprint = 0;
  std::string listen = "127.0.0.1:0";
  transport::SharedListenSocket socket;  // listens there already, or null
  std::vector<std::string> drafts;       // to keep connected: as link::LinkOptions::connect
  base::Nanos lookup_interval = 5 * base::kSecond;  // of names among them
  transport::FabricOptions fabric;
  speculation::VerificationMethod verification =
      speculation::VerificationMethod::kCoupled;  // where a request asks for none
  uint32_t verification_methods =
      1;  // bit set, 1 << VerificationMethod, of those that a request may ask for
  int32_t draft_probs_rows =
      0;  // of draft draft_probs that a slot takes; 0 where no verification method reads them
  bool gpu_draft_probs = false;          // the slots are in the memory of the GPU of the only rank
  scheduler::DraftRouterOptions router;  // its salt is filled in
  base::Nanos draft_latency_warn = 50 * base::kMillisecond;  // 0: no warning
  speculation::ChoiceOptions drafter_choice;
  base::Nanos step_timeout = 60 * base::kSecond;  // a longer step ends the process
  trace::Recorder* recorder = nullptr;  // null: nothing is traced; must outlive the service
};

class TargetService {
 public:
  // Loads the model, gathers the group where it spans processes, and starts to listen. Errors are
  // RankModel::Load's, GroupLeader::Gather's and Link::Create's and Start's.
  static absl::StatusOr<std::unique_ptr<TargetService>> Start(const TargetServiceOptions& options,
                                                              metrics::Registry* registry);
  ~TargetService();

  const std::string& listen_address() const;
  const model::ModelConfig& config() const;
  // False while draining.
  bool ready() const;
  // One line for /livez: of the step in flight, if there is one, and seconds since the last one
  // ended, if there was one.
  std::string Liveness() const;
  // Until every draft of options.drafts is up, or `timeout` has passed.
  void WaitForDrafts(base::Nanos timeout);
  // Refuses new work, waits for running sequences up to `timeout`, tells the peers.
  void Drain(base::Nanos timeout);

 private:
  class Impl;
  explicit TargetService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_TARGET_SERVICE_H_
