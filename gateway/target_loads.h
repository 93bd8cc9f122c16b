#ifndef SPECFABRIC_GATEWAY_TARGET_LOADS_H_
#define SPECFABRIC_GATEWAY_TARGET_LOADS_H_

// Adds up what the connected targets say of their load, for the metrics that routers read. On one
// thread.

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "link/link.h"
#include "metrics/router_metrics.h"
#include "schemas/messages.h"

namespace specfabric::gateway {

class TargetLoads {
 public:
  explicit TargetLoads(metrics::RouterMetrics* metrics) : metrics_(*metrics) {}

  void Up(link::PeerId peer, const schemas::Hello& hello);
  void Down(link::PeerId peer);
  // What a target counted before it was first heard of is not added to the totals.
  void Report(link::PeerId peer, const schemas::TargetLoad& load);

 private:
  struct Target {
    uint64_t incarnation = 0;
    std::optional<schemas::TargetLoad> load;
  };
  // Totals of an incarnation that have been counted.
  struct Counted {
    uint64_t drafts = 0, drafted = 0, accepted = 0;
    std::vector<uint64_t> accepted_at;
  };

  void Count(uint64_t incarnation, const schemas::TargetLoad& load);
  void Show();

  metrics::RouterMetrics& metrics_;
  std::map<link::PeerId, Target> targets_;
  // Stays when the target leaves: it may come back.
  std::map<uint64_t, Counted> counted_;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_TARGET_LOADS_H_
