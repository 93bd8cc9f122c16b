#ifndef SPECFABRIC_TARGET_GROUP_LEADER_H_
#define SPECFABRIC_TARGET_GROUP_LEADER_H_

// The leader's side of a target group that spans processes: a link of its own, on which rank
// processes (target/rank_service.h) join; they know nobody else. Ranks are dealt out in the order
// in which processes join, the leader's first. Collectives go through here: every rank process
// sends its parts and gets everybody's.
//
// A group lives and dies as one. Once it serves, a lost rank process ends it: a step cannot be
// taken back from the ranks that have done it, and one that hangs cannot be cancelled.
//
// Threads: Gather and FinishLoading by the thread that starts the process, Run by the leader's
// thread, Exchange by one of this process's ranks; the link's callbacks fill what they wait for.
// options.on_lost runs on whichever thread finds out.

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
  int processes = 1;   // of the group, the leader's among them; 1: it needs no link
  std::string listen;  // "host:port" where rank processes join
  transport::SharedListenSocket socket;          // listens there already, or null
  base::Nanos timeout = 5 * 60 * base::kSecond;  // for all to join and to load
  std::function<bool()> give_up;  // asked ten times a second while they do; unset: never
};

class GroupLeader : public model::ProcessExchange {
 public:
  // on_lost: after FinishLoading has succeeded, once.
  GroupLeader(const GroupOptions& options, int ranks,
              std::function<void(const absl::Status&)> on_lost);
  ~GroupLeader() override;  // tells the rank processes that they may end

  // Of the leader's own process.
  int rank_count() const;
  // Listens, waits until all processes have joined, and deals the ranks out. part: what they are
  // told; the ranks in it are filled in. Unavailable: a process was lost meanwhile.
  // DeadlineExceeded: not all have come. Cancelled: give_up. Or Link::Create's and Start's.
  absl::Status Gather(const transport::FabricOptions& fabric, const schemas::Hello& hello,
                      const schemas::GroupPart& part);
  // After this process's ranks have loaded, or failed to: `here` or why not. Waits until those of
  // all processes have, with the same fingerprint. Errors are those, or as of Gather.
  absl::Status FinishLoading(const absl::StatusOr<std::unique_ptr<RankGroup>>& here);

  // One step on all ranks: RankGroup::Run for a group that spans processes. After an error that is
  // not every rank's own, the group is lost.
  absl::StatusOr<scheduler::StepResult> Run(
      RankGroup* here, const scheduler::StepPlan& plan,
      absl::Span<const speculation::DraftProbs* const> draft_probs, StepTimes* times);

  // Of the link to the rank processes. Any thread, after Gather.
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
