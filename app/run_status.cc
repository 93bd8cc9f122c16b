// `specfabric status`: what the processes of a cluster do, once or every second.

#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "app/flags.h"
#include "app/options.h"
#include "app/process.h"
#include "app/roles.h"
#include "app/status/cluster_view.h"
#include "app/status/local_clusters.h"
#include "transport/address.h"

namespace specfabric::app {

namespace {

constexpr base::Nanos kInterval = base::kSecond;
constexpr base::Nanos kTimeout = 2 * base::kSecond;

// The cluster of a `specfabric up` on this machine.
absl::StatusOr<ClusterAddresses> LocalAddresses() {
  const std::vector<LocalCluster> clusters = LocalClusters();
  if (clusters.empty()) {
    return absl::InvalidArgumentError(
        "no `specfabric up` of this user runs on this machine; give the admin addresses of "
        "processes: --gateway_admin, --target_admin, --draft_admin=host:port,...");
  }
  if (FLAGS_up_pid != 0) {
    for (const LocalCluster& cluster : clusters) {
      if (cluster.pid == FLAGS_up_pid) return cluster.admin;
    }
    std::vector<std::string> pids;
    for (const LocalCluster& cluster : clusters) pids.push_back(absl::StrCat(cluster.pid));
    return absl::InvalidArgumentError(
        absl::StrCat("--up_pid=", FLAGS_up_pid,
                     ": allowed is the pid of a `specfabric up`: ", absl::StrJoin(pids, ", ")));
  }
  if (clusters.size() > 1) {
    std::fprintf(stderr, "%zu clusters run here; this is the newest:\n", clusters.size());
    for (const LocalCluster& cluster : clusters) {
      std::fprintf(stderr, "  --up_pid=%-8d http://%s\n", cluster.pid, cluster.listen.c_str());
    }
  }
  return clusters.front().admin;
}

absl::StatusOr<ClusterAddresses> AddressFlags() {
  ClusterAddresses addresses;
  for (auto [flag, value, list] :
       {std::tuple("gateway_admin", &FLAGS_gateway_admin, &addresses.gateways),
        std::tuple("target_admin", &FLAGS_target_admin, &addresses.targets),
        std::tuple("draft_admin", &FLAGS_draft_admin, &addresses.drafts)}) {
    auto read = Addresses(flag, *value, transport::CheckAddress);
    if (!read.ok()) return read.status();
    *list = *std::move(read);
  }
  const bool given =
      !addresses.gateways.empty() || !addresses.targets.empty() || !addresses.drafts.empty();
  if (given && FLAGS_up_pid != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--up_pid=", FLAGS_up_pid, " with addresses: allowed is one of the two"));
  }
  return given ? addresses : LocalAddresses();
}

void Print(const ClusterView& view, bool over) {
  // Moves the cursor home and clears below it.
  if (over) std::fputs("\x1b[H\x1b[J", stdout);
  std::fputs((FLAGS_json ? absl::StrCat(ToJson(view), "\n") : ToText(view)).c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

absl::Status RunStatus() {
  const auto addresses = AddressFlags();
  if (!addresses.ok()) return addresses.status();
  const bool live = !FLAGS_once && isatty(STDOUT_FILENO) == 1;
  ClusterSnapshot before = TakeSnapshot(*addresses, kTimeout);
  ClusterView view = MakeView(nullptr, before);
  if (live && !FLAGS_json) Print(view, /*over=*/true);
  do {
    if (WaitForSignal(kInterval).has_value()) return absl::OkStatus();
    ClusterSnapshot now = TakeSnapshot(*addresses, kTimeout);
    view = MakeView(&before, now);
    Print(view, live && !FLAGS_json);
    before = std::move(now);
  } while (live);
  if (!view.empty()) return absl::OkStatus();
  return absl::UnavailableError("no process has answered");
}

}  // namespace specfabric::app
