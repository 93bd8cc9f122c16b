#include "app/status/cluster_view.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "app/status/http_fetch.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace specfabric::app {
namespace {

constexpr const char* kSpan = "specfabric_round_span_seconds";

std::map<std::string, std::string> ParseAbout(const std::string& text) {
  std::map<std::string, std::string> about;
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return about;
  for (const auto& [name, value] : json.items()) {
    if (value.is_string()) about[name] = value.get<std::string>();
  }
  return about;
}

std::string Get(const std::map<std::string, std::string>& about, const std::string& name) {
  const auto it = about.find(name);
  return it == about.end() ? "" : it->second;
}

// What a process's metrics say now, and since its last snapshot.
class Metrics {
 public:
  Metrics(const std::vector<ProcessSnapshot>* before, const ProcessSnapshot& now, double seconds)
      : now_(*now.metrics), seconds_(seconds) {
    if (before == nullptr) return;
    for (const ProcessSnapshot& snapshot : *before) {
      if (snapshot.admin == now.admin && snapshot.metrics.ok()) before_ = &*snapshot.metrics;
    }
  }
  double Value(const std::string& name, const MetricLabels& labels = {}) const {
    return now_.Sum(name, labels);
  }
  const Exposition& all() const { return now_; }
  // By how much a counter grew; of a process that has started again, since then.
  std::optional<double> Growth(const std::string& name, const MetricLabels& labels = {}) const {
    if (before_ == nullptr) return std::nullopt;
    const double now = now_.Sum(name, labels), before = before_->Sum(name, labels);
    return now >= before ? now - before : now;
  }
  std::optional<double> Rate(const std::string& name, const MetricLabels& labels = {}) const {
    const auto growth = Growth(name, labels);
    if (!growth || seconds_ <= 0) return std::nullopt;
    return *growth / seconds_;
  }
  // Of what two counters grew.
  std::optional<double> Ratio(const std::string& of, const std::string& to,
                              const MetricLabels& labels = {}) const {
    const auto a = Growth(of, labels), b = Growth(to, labels);
    if (!a || !b || *b <= 0) return std::nullopt;
    return *a / *b;
  }

 private:
  const Exposition& now_;
  const double seconds_;
  const Exposition* before_ = nullptr;
};

GatewayView ToGateway(const ProcessSnapshot& snapshot, const Metrics& m) {
  GatewayView view;
  view.admin = snapshot.admin;
  view.listen = Get(snapshot.about, "listen");
  view.in_flight = m.Value("specfabric_gateway_requests_in_flight");
  view.targets_up = m.Value("specfabric_gateway_targets_up");
  view.tokens_per_second = m.Rate("specfabric_gateway_tokens_total", {{"kind", "output"}});
  view.requests_per_second = m.Rate("specfabric_gateway_requests_total");
  return view;
}

GroupView ToGroup(const ProcessSnapshot& snapshot, const Metrics& m) {
  GroupView view;
  view.admin = snapshot.admin;
  view.listen = Get(snapshot.about, "listen");
  view.model = m.all().Label("specfabric_build_info", "model");
  view.verification = Get(snapshot.about, "verification");
  view.running = m.Value("specfabric_target_running_sequences");
  view.waiting = m.Value("specfabric_target_waiting_sequences");
  view.drafts = m.Value("specfabric_target_draft_workers");
  const double used = m.Value("specfabric_target_kv_blocks_used");
  const double all = used + m.Value("specfabric_target_kv_blocks_free");
  view.kv_used = all > 0 ? used / all : 0;
  view.tokens_per_second = m.Rate("specfabric_tokens_total", {{"kind", "output"}});
  view.accepted_per_round = m.Ratio("specfabric_accepted_tokens_total", "specfabric_rounds_total");
  view.acceptance = m.Ratio("specfabric_accepted_tokens_total", "specfabric_drafted_tokens_total");
  for (const MetricSample& sample : m.all().Of(absl::StrCat(kSpan, "_count"))) {
    const auto span = sample.labels.find("span");
    if (span == sample.labels.end()) continue;
    const auto mean = m.Ratio(absl::StrCat(kSpan, "_sum"), absl::StrCat(kSpan, "_count"),
                              {{"span", span->second}});
    if (mean) view.span_ms[span->second] = 1e3 * *mean;
  }
  return view;
}

void AddRoutes(const GroupView& group, const Metrics& m, std::vector<RouteView>* routes) {
  for (const MetricSample& sample : m.all().Of("specfabric_target_worker_in_service")) {
    const auto value = [&](const char* name) {
      return m.Value(absl::StrCat("specfabric_target_worker_", name), sample.labels);
    };
    RouteView view;
    view.target = group.listen.empty() ? group.admin : group.listen;
    view.draft = Get(sample.labels, "worker");
    view.model = Get(sample.labels, "model");
    view.in_service = sample.value > 0;
    view.slow = value("slow") > 0;
    view.sequences = value("sequences");
    view.outstanding = value("outstanding_requests");
    if (const double latency = value("latency_seconds"); latency > 0) {
      view.latency_ms = 1e3 * latency;
    }
    view.misses = value("misses_total");
    view.replies_per_second = m.Rate("specfabric_target_worker_replies_total", sample.labels);
    routes->push_back(std::move(view));
  }
}

DraftView ToDraft(const ProcessSnapshot& snapshot, const Metrics& m) {
  DraftView view;
  view.admin = snapshot.admin;
  view.listen = Get(snapshot.about, "listen");
  view.model = m.all().Label("specfabric_build_info", "model");
  view.sessions = m.Value("specfabric_draft_sessions");
  view.capacity = m.Value("specfabric_draft_session_capacity");
  view.nodes_per_second = m.Rate("specfabric_draft_tree_nodes_total");
  view.requests_per_second = m.Rate("specfabric_draft_requests_total");
  view.draft_ms = m.Ratio("specfabric_draft_seconds_sum", "specfabric_draft_seconds_count");
  if (view.draft_ms) *view.draft_ms *= 1e3;
  constexpr const char* kOutcomes = "specfabric_draft_ahead_outcomes_total";
  const auto outcomes = m.Growth(kOutcomes), hits = m.Growth(kOutcomes, {{"outcome", "hit"}});
  if (outcomes && hits && *outcomes > 0) view.hit_rate = *hits / *outcomes;
  if (m.Value("specfabric_draft_hidden_states_total") > 0) {
    view.states_per_second = m.Rate("specfabric_draft_hidden_states_total");
    view.state_bytes_per_second = m.Rate("specfabric_draft_hidden_states_bytes_total");
  }
  return view;
}

// Calls `add` for each process that has answered as a `role`, and lists the others.
template <typename Add>
void Visit(const char* role, const std::vector<ProcessSnapshot>& snapshots, ClusterView* view,
           Add add) {
  for (const ProcessSnapshot& snapshot : snapshots) {
    std::string why;
    if (!snapshot.metrics.ok()) {
      why = base::Message(snapshot.metrics.status());
    } else if (const std::string found = snapshot.metrics->Label("specfabric_build_info", "role");
               found != role) {
      why = found.empty() ? "not a process of SpecFabric" : absl::StrCat("is a ", found);
    } else {
      add(snapshot);
      continue;
    }
    view->unreachable.push_back({role, snapshot.admin, std::move(why)});
  }
}

}  // namespace

ClusterSnapshot TakeSnapshot(const ClusterAddresses& addresses, base::Nanos timeout) {
  ClusterSnapshot snapshot;
  std::vector<Page> pages;
  const auto ask = [&pages](const std::vector<std::string>& admins) {
    for (const std::string& admin : admins) {
      pages.push_back({admin, "/metrics"});
      pages.push_back({admin, "/debug/status"});
    }
  };
  ask(addresses.gateways);
  ask(addresses.targets);
  ask(addresses.drafts);
  auto bodies = FetchPages(pages, timeout);
  snapshot.time = base::Now();
  size_t next = 0;
  const auto read = [&](const std::vector<std::string>& admins,
                        std::vector<ProcessSnapshot>* snapshots) {
    for (const std::string& admin : admins) {
      ProcessSnapshot process;
      process.admin = admin;
      const auto& metrics = bodies[next++];
      const auto& about = bodies[next++];
      process.metrics =
          metrics.ok() ? Exposition::Parse(*metrics) : absl::StatusOr<Exposition>(metrics.status());
      if (about.ok()) process.about = ParseAbout(*about);
      snapshots->push_back(std::move(process));
    }
  };
  read(addresses.gateways, &snapshot.gateways);
  read(addresses.targets, &snapshot.targets);
  read(addresses.drafts, &snapshot.drafts);
  return snapshot;
}

ClusterView MakeView(const ClusterSnapshot* before, const ClusterSnapshot& now) {
  ClusterView view;
  const double seconds = before == nullptr ? 0 : base::ToSeconds(now.time - before->time);
  const auto metrics = [&](const ProcessSnapshot& snapshot,
                           std::vector<ProcessSnapshot> ClusterSnapshot::*kind) {
    return Metrics(before == nullptr ? nullptr : &(before->*kind), snapshot, seconds);
  };
  Visit("gateway", now.gateways, &view, [&](const ProcessSnapshot& snapshot) {
    view.gateways.push_back(ToGateway(snapshot, metrics(snapshot, &ClusterSnapshot::gateways)));
  });
  Visit("target", now.targets, &view, [&](const ProcessSnapshot& snapshot) {
    const Metrics m = metrics(snapshot, &ClusterSnapshot::targets);
    view.groups.push_back(ToGroup(snapshot, m));
    AddRoutes(view.groups.back(), m, &view.routes);
  });
  Visit("draft", now.drafts, &view, [&](const ProcessSnapshot& snapshot) {
    view.drafts.push_back(ToDraft(snapshot, metrics(snapshot, &ClusterSnapshot::drafts)));
  });
  return view;
}

}  // namespace specfabric::app
