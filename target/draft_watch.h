#ifndef SPECFABRIC_TARGET_DRAFT_WATCH_H_
#define SPECFABRIC_TARGET_DRAFT_WATCH_H_

// Reports the state of a target's draft workers: their metrics, and a log line when one becomes
// slow or is no longer slow. Leader thread only.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/clock.h"
#include "metrics/draft_route_metrics.h"
#include "scheduler/routing/draft_router.h"

namespace specfabric::target {

class DraftWatch {
 public:
  // The least time between two updates of the metrics.
  static constexpr base::Nanos kInterval = 100 * base::kMillisecond;

  // warn: the latency above which a worker is slow; 0: none is. `metrics` must outlive this.
  DraftWatch(base::Nanos warn, metrics::DraftRouteMetrics* metrics)
      : warn_(warn), metrics_(metrics) {}

  void Up(scheduler::DraftId draft, const std::string& address, const std::string& model);
  void Down(scheduler::DraftId draft);

  // A worker is slow once its latency has been above `warn` for so many replies and so long: the
  // first replies after a start, whose pages are cold, are not what a worker is.
  static constexpr uint64_t kSlowReplies = 16;
  static constexpr base::Nanos kSlowFor = base::kSecond;

  // Call it whenever a state may have changed. A worker that becomes slow is logged once, and once
  // more when it is back below three quarters of `warn`.
  void Update(const std::vector<scheduler::DraftState>& states, base::Nanos now);
  // When to call Update again if no state changes, because the metrics do not show the last states
  // yet; kForever: they do.
  base::Nanos due() const { return behind_ ? next_ : base::kForever; }

 private:
  struct Worker {
    std::string address, model;
    bool slow = false;
    // When its latency passed `warn`, and its replies until then; -1: it is not above that.
    base::Nanos above_since = -1;
    uint64_t replies_before = 0;
  };
  // Whether the latency of a worker that was not slow makes it so.
  bool BecomesSlow(const scheduler::DraftState& state, base::Nanos now, Worker* worker) const;
  void UpdateSlow(const scheduler::DraftState& state, base::Nanos now, Worker* worker) const;

  const base::Nanos warn_;
  metrics::DraftRouteMetrics* const metrics_;
  absl::flat_hash_map<scheduler::DraftId, Worker> workers_;
  base::Nanos next_ = 0;
  bool behind_ = false;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_DRAFT_WATCH_H_
