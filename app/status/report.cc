#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "app/status/cluster_view.h"
#include "nlohmann/json.hpp"

namespace specfabric::app {
namespace {

using Row = std::vector<std::string>;

std::string Number(double value, int decimals = 0) {
  return absl::StrFormat("%.*f", decimals, value);
}
std::string Number(const std::optional<double>& value, int decimals = 0) {
  return value ? Number(*value, decimals) : "-";
}
std::string Percent(const std::optional<double>& share) {
  return share ? absl::StrCat(Number(100 * *share), "%") : "-";
}
std::string Or(const std::string& text, const std::string& fallback) {
  return text.empty() ? fallback : text;
}

// Columns as wide as their widest cell; the first `texts` of them to the left, numbers to the
// right.
void AddTable(const std::vector<Row>& rows, size_t texts, std::string* out) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const Row& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  if (!out->empty()) *out += '\n';
  for (const Row& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string space(widths[c] - row[c].size(), ' ');
      absl::StrAppend(&line, c == 0 ? "" : "  ", c < texts ? row[c] : space,
                      c < texts ? space : row[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(out, line, "\n");
  }
}

// A round in the order of its parts.
void AddSpans(const std::vector<GroupView>& groups, std::string* out) {
  constexpr const char* kOrder[] = {"draft_wait", "draft_compute", "transfer", "plan",
                                    "forward",    "verify",        "commit"};
  std::vector<Row> rows = {{"SPANS, ms"}};
  for (const char* span : kOrder) rows[0].push_back(span);
  for (const GroupView& group : groups) {
    if (group.span_ms.empty()) continue;
    Row row = {Or(group.listen, group.admin)};
    for (const char* span : kOrder) {
      const auto it = group.span_ms.find(span);
      row.push_back(it == group.span_ms.end() ? "-" : Number(it->second, 3));
    }
    rows.push_back(std::move(row));
  }
  if (rows.size() > 1) AddTable(rows, 1, out);
}

nlohmann::json Json(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

}  // namespace

std::string ToText(const ClusterView& view) {
  std::string out;
  std::vector<Row> rows = {{"GATEWAYS", "in flight", "targets", "requests/s", "tokens/s"}};
  for (const GatewayView& g : view.gateways) {
    rows.push_back({Or(g.listen, g.admin), Number(g.in_flight), Number(g.targets_up),
                    Number(g.requests_per_second, 1), Number(g.tokens_per_second, 1)});
  }
  if (rows.size() > 1) AddTable(rows, 1, &out);
  rows = {{"GROUPS", "model", "coupling", "running", "waiting", "KV", "tokens/s", "accepted/round",
           "acceptance", "drafts"}};
  for (const GroupView& g : view.groups) {
    rows.push_back({Or(g.listen, g.admin), g.model, Or(g.coupling, "-"), Number(g.running),
                    Number(g.waiting), Percent(g.kv_used), Number(g.tokens_per_second, 1),
                    Number(g.accepted_per_round, 2), Percent(g.acceptance), Number(g.drafts)});
  }
  if (rows.size() > 1) AddTable(rows, 3, &out);
  AddSpans(view.groups, &out);
  rows = {{"DRAFTS", "model", "sessions", "requests/s", "nodes/s", "ms a tree", "ahead"}};
  for (const DraftView& d : view.drafts) {
    rows.push_back({Or(d.listen, d.admin), d.model,
                    absl::StrCat(Number(d.sessions), "/", Number(d.capacity)),
                    Number(d.requests_per_second, 1), Number(d.nodes_per_second, 1),
                    Number(d.draft_ms, 2), Percent(d.hit_rate)});
  }
  if (rows.size() > 1) AddTable(rows, 2, &out);
  rows = {{"ROUTES", "draft", "model", "state", "sequences", "asked", "ms", "replies/s", "misses"}};
  for (const RouteView& r : view.routes) {
    rows.push_back({r.target, r.draft, r.model,
                    !r.in_service ? "out"
                    : r.slow      ? "slow"
                                  : "in",
                    Number(r.sequences), Number(r.outstanding), Number(r.latency_ms, 2),
                    Number(r.replies_per_second, 1), Number(r.misses)});
  }
  if (rows.size() > 1) AddTable(rows, 4, &out);
  rows = {{"UNREACHABLE", "role", "why"}};
  for (const UnreachableView& u : view.unreachable) rows.push_back({u.admin, u.role, u.why});
  if (rows.size() > 1) AddTable(rows, 3, &out);
  return out;
}

std::string ToJson(const ClusterView& view) {
  nlohmann::json json;
  json["gateways"] = json["groups"] = json["drafts"] = json["routes"] = json["unreachable"] =
      nlohmann::json::array();
  for (const GatewayView& g : view.gateways) {
    json["gateways"].push_back({{"admin", g.admin},
                                {"listen", g.listen},
                                {"in_flight", g.in_flight},
                                {"targets_up", g.targets_up},
                                {"requests_per_second", Json(g.requests_per_second)},
                                {"tokens_per_second", Json(g.tokens_per_second)}});
  }
  for (const GroupView& g : view.groups) {
    json["groups"].push_back({{"admin", g.admin},
                              {"listen", g.listen},
                              {"model", g.model},
                              {"coupling", g.coupling},
                              {"running", g.running},
                              {"waiting", g.waiting},
                              {"drafts", g.drafts},
                              {"kv_used", g.kv_used},
                              {"tokens_per_second", Json(g.tokens_per_second)},
                              {"accepted_per_round", Json(g.accepted_per_round)},
                              {"acceptance", Json(g.acceptance)},
                              {"span_ms", g.span_ms}});
  }
  for (const DraftView& d : view.drafts) {
    json["drafts"].push_back({{"admin", d.admin},
                              {"listen", d.listen},
                              {"model", d.model},
                              {"sessions", d.sessions},
                              {"capacity", d.capacity},
                              {"requests_per_second", Json(d.requests_per_second)},
                              {"nodes_per_second", Json(d.nodes_per_second)},
                              {"draft_ms", Json(d.draft_ms)},
                              {"hit_rate", Json(d.hit_rate)}});
  }
  for (const RouteView& r : view.routes) {
    json["routes"].push_back({{"target", r.target},
                              {"draft", r.draft},
                              {"model", r.model},
                              {"sequences", r.sequences},
                              {"outstanding", r.outstanding},
                              {"latency_ms", r.latency_ms},
                              {"in_service", r.in_service},
                              {"slow", r.slow},
                              {"misses", r.misses},
                              {"replies_per_second", Json(r.replies_per_second)}});
  }
  for (const UnreachableView& u : view.unreachable) {
    json["unreachable"].push_back({{"role", u.role}, {"admin", u.admin}, {"why", u.why}});
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace specfabric::app
