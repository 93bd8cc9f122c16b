#ifndef SPECFABRIC_TARGET_GROUP_LEADER_H_
#define SPECFABRIC_TARGET_GROUP_LEADER_H_

// The leader's side of a target group that spans processes. It listens on a link of its own; rank
// processes (target/rank_service.h) connect to it and to nobody else. The leader's process gets the
// first ranks, the others get theirs in the order in which they join. Collectives pass through the
// leader: every rank process sends its ranks' parts and receives the parts of all ranks.
//
// A group fails as a whole: once it serves, the loss of a rank process ends it, because a step
// cannot be undone on the ranks that have run it, and a hanging one cannot be cancelled.
//
// Threads: Gather and FinishLoading are called by the thread that starts the process, Run by the
// leader's thread, Exchange by one of this process's ranks. They wait for what the link's callbacks
// receive. on_lost is called by the thread that notices the loss.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "metrics/fabric_metrics.h"
#include "model/parallel/process_communicator.h"
#include "schemas/messages.h"
#include "target/rank_group.h"
#include "transport/fabric.h"

namespace specfabric::target {

struct GroupOptions {
  int processes = 1;   // of the group, the leader's included; 1: no link is needed
  std::string listen;  // "host:port" where rank processes join
  transport::SharedListenSocket socket;          // already listening there, or null
  base::Nanos timeout = 5 * 60 * base::kSecond;  // for all processes to join and load
  std::function<bool()> give_up;  // polled ten times a second until then; unset: never
};

class GroupLeader : public model::ProcessExchange {
 public:
  // on_lost: called at most once, after FinishLoading has succeeded.
  GroupLeader(const GroupOptions& options, int ranks,
              std::function<void(const absl::Status&)> on_lost);
  ~GroupLeader() override;  // tells the rank processes to end

  // Ranks in the leader's own process.
  int rank_count() const;
  // Listens, waits until all processes have joined, and deals the ranks out. part: what they are
  // told; the ranks in it are filled in. Unavailable: a process was lost meanwhile.
  // DeadlineExceeded: not all have come. Cancelled: give_up. Or Link::Create's and Start's.
  absl::Status Gather(const transport::FabricOptions& fabric, const schemas::Hello& hello,
                      const schemas::GroupPart& part);
  // To be called when this process's ranks have loaded or failed to: `here`. Waits until the ranks
  // of all processes have loaded, with the same fingerprint. Errors: the status of `here`, or as of
  // Gather.
  absl::Status FinishLoading(const absl::StatusOr<std::unique_ptr<RankGroup>>& here);

  // One step on all ranks: RankGroup::Run for a group that spans processes. After an error that not
  // every rank has, the group is lost.
  absl::Status Run(RankGroup* here, const scheduler::StepPlan& plan, const VerifyInputs& inputs,
                   StepTimes* times, scheduler::StepResult* result);

  // Counters of the link to the rank processes. From any thread, after Gather.
  metrics::FabricCounters counters() const;

  bool Exchange(const std::vector<absl::Span<const uint8_t>>& mine,
                std::vector<std::vector<uint8_t>>* all) override;
  void Diverged() override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_GROUP_LEADER_H_
