#ifndef SPECFABRIC_TARGET_TARGET_SERVICE_H_
#define SPECFABRIC_TARGET_TARGET_SERVICE_H_

// The target role of a process: ranks, leader thread, watchdog, and the link to gateways and
// drafts.

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
  GroupOptions group;  // the processes that run the ranks
  scheduler::SchedulerOptions
      scheduler;  // vocabulary and block numbers are filled in from the model
  std::string model_name;
  uint64_t tokenizer_fingerprint = 0;
  std::string listen = "127.0.0.1:0";
  transport::SharedListenSocket socket;  // listens there already, or null
  std::vector<std::string> drafts;       // addresses to stay connected to: LinkOptions::connect
  base::Nanos lookup_interval = 5 * base::kSecond;  // of DNS names among them
  transport::FabricOptions fabric;
  speculation::VerificationMethod verification =
      speculation::VerificationMethod::kCoupled;  // for requests that name none
  bool chooses_verification = false;              // instead, for each such request
  uint32_t verification_methods =
      1;  // set of bits 1 << VerificationMethod: those that a request may name
  int32_t draft_probs_rows =
      0;  // rows of draft probabilities in a slot; 0 if no verification method reads them
  // The slots are in memory of the GPU of the only rank, if there is one that UCX can use.
  bool gpu_draft_probs = false;
  // Hidden states are sent from memory of rank 0's GPU, likewise.
  bool gpu_states = false;
  scheduler::DraftRouterOptions router;                      // Start sets its salt
  base::Nanos draft_latency_warn = 50 * base::kMillisecond;  // 0: no warning
  speculation::ChoiceOptions drafter_choice;
  base::Nanos step_timeout = 60 * base::kSecond;  // a longer step ends the process
  trace::Recorder* recorder = nullptr;            // null: no tracing; must outlive the service
};

class TargetService {
 public:
  // Loads the model, gathers the group if it spans processes, and starts to listen. Errors are
  // LoadModelConfig's, CheckShape's, ServedContext's, RankModel::Load's, GroupLeader::Gather's and
  // FinishLoading's, and Link::Create's, AddPool's and Start's.
  static absl::StatusOr<std::unique_ptr<TargetService>> Start(const TargetServiceOptions& options,
                                                              metrics::Registry* registry);
  ~TargetService();

  const std::string& listen_address() const;
  const model::ModelConfig& config() const;
  // False while draining.
  bool ready() const;
  // One line for /livez: about the step in flight, if any, and the seconds since the end of the
  // last one, if any.
  std::string Liveness() const;
  // Waits, for at most `timeout`, until as many draft workers are connected as options.drafts has
  // entries (a dns:/// name is one).
  void WaitForDrafts(base::Nanos timeout);
  // Refuses new work, tells the peers, and waits for running sequences for at most `timeout`.
  void Drain(base::Nanos timeout);

 private:
  class Impl;
  explicit TargetService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_TARGET_SERVICE_H_
