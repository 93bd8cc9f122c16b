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

  // Call it whenever a state may have changed. A worker whose latency passes `warn` is logged once,
  // and once more when it is back below three quarters of that.
  void Update(const std::vector<scheduler::DraftState>& states, base::Nanos now);
  // When to call Update again if no state changes, because the metrics do not show the last states
  // yet; kForever: they do.
  base::Nanos due() const { return behind_ ? next_ : base::kForever; }

 private:
  struct Worker {
    std::string address, model;
    bool slow = false;
  };
  void UpdateSlow(const scheduler::DraftState& state, Worker* worker) const;

  const base::Nanos warn_;
  metrics::DraftRouteMetrics* const metrics_;
  absl::flat_hash_map<scheduler::DraftId, Worker> workers_;
  base::Nanos next_ = 0;
  bool behind_ = false;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_DRAFT_WATCH_H_
