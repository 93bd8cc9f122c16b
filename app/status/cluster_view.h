#ifndef SPECFABRIC_APP_STATUS_CLUSTER_VIEW_H_
#define SPECFABRIC_APP_STATUS_CLUSTER_VIEW_H_

// The state of a cluster as an operator reads it, from its processes' admin pages. Rates are
// over the time between two snapshots.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "app/status/exposition.h"
#include "base/clock.h"

namespace specfabric::app {

// Admin addresses, as given.
struct ClusterAddresses {
  std::vector<std::string> gateways, targets, drafts;
};

// Metrics of one process at one time.
struct ProcessSnapshot {
  std::string admin;  // its address
  absl::StatusOr<Exposition> metrics = absl::UnavailableError("not asked");
  std::map<std::string, std::string> about;  // /debug/status: strings by name
};

struct ClusterSnapshot {
  base::Nanos time = 0;
  std::vector<ProcessSnapshot> gateways, targets, drafts;
};

// Asks all processes at once, for `timeout` at most.
ClusterSnapshot TakeSnapshot(const ClusterAddresses& addresses, base::Nanos timeout);

// Rates and means are missing where nothing happened, or there was no snapshot before.
struct GatewayView {
  std::string admin, listen;
  double in_flight = 0, targets_up = 0;
  std::optional<double> tokens_per_second, requests_per_second;
};
struct GroupView {
  std::string admin, listen, model, verification;
  double running = 0, waiting = 0, drafts = 0;
  double kv_used = 0;  // share of the blocks
  std::optional<double> tokens_per_second;
  std::optional<double> accepted_per_round;  // draft tokens, of rounds of any kind
  std::optional<double> acceptance;          // accepted draft tokens, of those verified
  std::map<std::string, double> span_ms;     // mean of each span of a round
};
struct DraftView {
  std::string admin, listen, model;
  double sessions = 0, capacity = 0;
  std::optional<double> nodes_per_second, requests_per_second, draft_ms;
  std::optional<double> hit_rate;  // of commits whose next root had been drafted ahead
  // Hidden states received; none of a draft that reads none.
  std::optional<double> states_per_second = {}, state_bytes_per_second = {};
};
struct RouteView {
  std::string target, draft, model;  // addresses of the fabric, where known
  double sequences = 0, outstanding = 0;
  std::optional<double> latency_ms;  // specfabric_target_worker_latency_seconds; none for 0
  bool in_service = false, slow = false;
  double misses = 0;  // since they connected
  std::optional<double> replies_per_second;
};
struct UnreachableView {
  std::string role, admin, why;
};

struct ClusterView {
  std::vector<GatewayView> gateways;
  std::vector<GroupView> groups;
  std::vector<DraftView> drafts;
  std::vector<RouteView> routes;
  std::vector<UnreachableView> unreachable;
  bool empty() const { return gateways.empty() && groups.empty() && drafts.empty(); }
};

// `before` may be null; processes are told apart by their admin addresses.
ClusterView MakeView(const ClusterSnapshot* before, const ClusterSnapshot& now);

// For people: a table of each kind, without those that are empty; no line is longer than 80
// columns.
std::string ToText(const ClusterView& view);
// For programs: one JSON object on one line.
std::string ToJson(const ClusterView& view);

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_STATUS_CLUSTER_VIEW_H_
