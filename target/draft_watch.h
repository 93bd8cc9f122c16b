#ifndef SPECFABRIC_TARGET_DRAFT_WATCH_H_
#define SPECFABRIC_TARGET_DRAFT_WATCH_H_

// Tells the operator how the drafts of a target do: their metrics, and a warning when one becomes
// slow. Owned by the leader thread.

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
  // Metrics are brought up to date so often at most.
  static constexpr base::Nanos kInterval = 100 * base::kMillisecond;

  // `warn`: the latency above which a worker is slow; 0: none is. `metrics` must outlive this.
  DraftWatch(base::Nanos warn, metrics::DraftRouteMetrics* metrics)
      : warn_(warn), metrics_(metrics) {}

  void Up(scheduler::DraftId draft, const std::string& address, const std::string& model);
  void Down(scheduler::DraftId draft);

  // To be called whenever something may have changed. A worker that passes `warn` is logged once,
  // and once more when it is back below three quarters of it.
  void Update(const std::vector<scheduler::DraftState>& states, base::Nanos now);
  // When Update is to be called again if nothing happens: what it was told last is not shown yet.
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
