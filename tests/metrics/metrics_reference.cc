#include "tests/metrics/metrics_reference.h"

#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "metrics/draft_metrics.h"
#include "metrics/fabric_metrics.h"
#include "metrics/gateway_metrics.h"
#include "metrics/registry.h"
#include "metrics/router_metrics.h"
#include "metrics/target_metrics.h"
#include "metrics/trace_metrics.h"

namespace specfabric::metrics {
namespace {

constexpr const char* kIntroduction = R"(# Metrics

Every process answers `GET /metrics` in Prometheus' text format on its admin port, the gateway on its
HTTP port too. All series exist from the start, with zero, but for those of peers, wires, targets'
caches and depths, draft models and draft workers, which appear with their first connection. Times are seconds. Written from the code by
`scripts/update_docs`; a test compares the two.
)";

struct Family {
  std::string type, help;
  std::set<std::string> labels;
};

// By name, of an exposition.
std::map<std::string, Family> FamiliesOf(const std::string& exposition) {
  static const std::regex kLabel("[{,]([a-z_]+)=");
  std::map<std::string, Family> families;
  std::istringstream lines(exposition);
  Family* family = nullptr;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# HELP ")) {
      const size_t end = line.find(' ', 7);
      family = &families[line.substr(7, end - 7)];
      family->help = line.substr(end + 1);
    } else if (line.starts_with("# TYPE ")) {
      family = &families[line.substr(7, line.find(' ', 7) - 7)];
      family->type = line.substr(line.rfind(' ') + 1);
    } else {
      for (std::sregex_iterator label(line.begin(), line.end(), kLabel), end; label != end;
           ++label) {
        if ((*label)[1] != "le") family->labels.insert((*label)[1]);
      }
    }
  }
  return families;
}

std::string Table(const std::string& title, Registry& registry) {
  std::string table =
      absl::StrCat("\n## ", title, "\n| name | type | labels | meaning |\n|---|---|---|---|\n");
  for (const auto& [name, family] : FamiliesOf(registry.Render())) {
    absl::StrAppend(&table, "| `", name, "` | ", family.type, " | ",
                    absl::StrJoin(family.labels, ", "), " | ", family.help, " |\n");
  }
  return table;
}

}  // namespace

std::string MetricsReference() {
  std::string text = kIntroduction;
  Registry common, gateway_registry, target_registry, draft_registry;
  common.SetBuildInfo("target", "1.2.3", "m");
  FabricMetrics fabric(common, [] {
    FabricCounters counters;
    counters.peers = {{.peer = "a:1", .role = "draft", .wire = "tcp/lo"}};
    counters.registered_bytes["host"] = 0;
    counters.slots["free"] = 0;
    return counters;
  });
  TraceMetrics trace(common, [] { return TraceCounters{}; });
  absl::StrAppend(&text, Table("Every role", common));
  GatewayMetrics gateway(gateway_registry);
  RouterMetrics router(gateway_registry, "m");
  router.AcceptedAt(0);
  router.SetCacheConfig(16, 100);
  absl::StrAppend(&text, Table("Gateway", gateway_registry));
  TargetMetrics target(target_registry, "m", 2);
  target.draft_routes.Update({{.worker = "a:1", .model = "d"}});
  target.AddDrafter("a draft model");
  absl::StrAppend(&text, Table("Target", target_registry));
  DraftMetrics draft(draft_registry);
  draft.Outcomes(0, 0);
  absl::StrAppend(&text, Table("Draft", draft_registry));
  return text;
}

}  // namespace specfabric::metrics
