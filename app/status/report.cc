// The cluster as text of at most 80 columns, and as JSON. In the text every process has a short
// name
// ("t1"), because two IPv6 addresses do not fit a line.

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "app/status/cluster_view.h"
#include "app/status/table.h"
#include "nlohmann/json.hpp"

namespace specfabric::app {
namespace {

using Row = std::vector<std::string>;

std::string Number(double value, int decimals = 0) { return Compact(value, decimals); }
std::string Number(const std::optional<double>& value, int decimals = 0) {
  return value ? Number(*value, decimals) : "-";
}
std::string Percent(const std::optional<double>& share) {
  return share ? absl::StrCat(Number(100 * *share), "%") : "-";
}
std::string Or(const std::string& text, const std::string& fallback) {
  return text.empty() ? fallback : text;
}

// The short names, and the table that explains them.
class Names {
 public:
  explicit Names(const ClusterView& view) {
    for (const GatewayView& g : view.gateways) Add('g', "gateway", Or(g.listen, g.admin), {});
    for (const GroupView& g : view.groups) {
      Add('t', "target", Or(g.listen, g.admin), {g.model, g.verification});
    }
    for (const DraftView& d : view.drafts) Add('d', "draft", Or(d.listen, d.admin), {d.model});
    // Drafts that the targets use and that were not given by an address.
    for (const RouteView& r : view.routes) Add('d', "draft", r.draft, {r.model});
  }
  std::string Of(char kind, const std::string& address) const {
    const auto it = names_.find({kind, address});
    return it == names_.end() ? Printable(address) : it->second;
  }
  std::string Text() const {
    std::string text;
    for (const Row& row : rows_) text += Wrapped(row, 13);
    return text.empty() ? "" : absl::StrCat("PROCESSES\n", text);
  }

 private:
  void Add(char kind, const std::string& role, const std::string& address,
           const std::vector<std::string>& more) {
    std::string& name = names_[{kind, address}];
    if (!name.empty()) return;
    name = absl::StrCat(std::string(1, kind), ++counts_[kind]);
    Row row = {absl::StrFormat("%-4s %-7s", name, role), Printable(address)};
    for (const std::string& word : more) {
      if (!word.empty()) row.push_back(Printable(word));
    }
    rows_.push_back(std::move(row));
  }

  std::map<std::pair<char, std::string>, std::string> names_;
  std::map<char, int> counts_;
  std::vector<Row> rows_;
};

void AddTable(const std::string& title, const std::vector<Row>& rows, size_t texts,
              std::string* out) {
  if (rows.size() > 1) absl::StrAppend(out, "\n", title, "\n", Table(rows, texts));
}

void AddGateways(const ClusterView& view, const Names& names, std::string* out) {
  std::vector<Row> rows = {{"", "in flight", "targets", "requests/s", "tokens/s"}};
  for (const GatewayView& g : view.gateways) {
    rows.push_back({names.Of('g', Or(g.listen, g.admin)), Number(g.in_flight), Number(g.targets_up),
                    Number(g.requests_per_second, 1), Number(g.tokens_per_second, 1)});
  }
  AddTable("GATEWAYS", rows, 1, out);
}

void AddGroups(const ClusterView& view, const Names& names, std::string* out) {
  std::vector<Row> rows = {
      {"", "running", "waiting", "KV", "tokens/s", "accepted/round", "acceptance", "drafts"}};
  for (const GroupView& g : view.groups) {
    rows.push_back({names.Of('t', Or(g.listen, g.admin)), Number(g.running), Number(g.waiting),
                    Percent(g.kv_used), Number(g.tokens_per_second, 1),
                    Number(g.accepted_per_round, 2), Percent(g.acceptance), Number(g.drafts)});
  }
  AddTable("GROUPS", rows, 1, out);
}

// A round in the order of its parts.
void AddSpans(const ClusterView& view, const Names& names, std::string* out) {
  constexpr const char* kOrder[] = {"draft_wait", "draft_compute", "transfer", "plan",
                                    "forward",    "verify",        "commit"};
  std::vector<Row> rows = {{""}};
  for (const char* span : kOrder) rows[0].emplace_back(span);
  for (const GroupView& group : view.groups) {
    if (group.span_ms.empty()) continue;
    Row row = {names.Of('t', Or(group.listen, group.admin))};
    for (const char* span : kOrder) {
      const auto it = group.span_ms.find(span);
      row.push_back(it == group.span_ms.end() ? "-" : Number(it->second, 3));
    }
    rows.push_back(std::move(row));
  }
  AddTable("SPANS of a round, ms", rows, 1, out);
}

void AddDrafts(const ClusterView& view, const Names& names, std::string* out) {
  std::vector<Row> rows = {
      {"", "sessions", "requests/s", "nodes/s", "ms a tree", "ahead", "states/s", "MB/s"}};
  for (const DraftView& d : view.drafts) {
    std::optional<double> megabytes = d.state_bytes_per_second;
    if (megabytes) *megabytes /= 1e6;
    rows.push_back({names.Of('d', Or(d.listen, d.admin)),
                    absl::StrCat(Number(d.sessions), "/", Number(d.capacity)),
                    Number(d.requests_per_second, 1), Number(d.nodes_per_second, 1),
                    Number(d.draft_ms, 2), Percent(d.hit_rate), Number(d.states_per_second, 1),
                    Number(megabytes, 2)});
  }
  AddTable("DRAFTS", rows, 1, out);
}

void AddRoutes(const ClusterView& view, const Names& names, std::string* out) {
  std::vector<Row> rows = {
      {"from", "to", "state", "sequences", "asked", "ms", "replies/s", "misses"}};
  for (const RouteView& r : view.routes) {
    rows.push_back({names.Of('t', r.target), names.Of('d', r.draft),
                    !r.in_service ? "out"
                    : r.slow      ? "slow"
                                  : "in",
                    Number(r.sequences), Number(r.outstanding), Number(r.latency_ms, 2),
                    Number(r.replies_per_second, 1), Number(r.misses)});
  }
  AddTable("ROUTES", rows, 3, out);
}

void AddUnreachable(const ClusterView& view, std::string* out) {
  if (view.unreachable.empty()) return;
  absl::StrAppend(out, out->empty() ? "" : "\n", "UNREACHABLE\n");
  for (const UnreachableView& u : view.unreachable) {
    Row words = {absl::StrFormat("%-7s", u.role), absl::StrCat(Printable(u.admin), ":")};
    for (absl::string_view word : absl::StrSplit(Printable(u.why), ' ', absl::SkipEmpty())) {
      words.emplace_back(word);
    }
    absl::StrAppend(out, Wrapped(words, 8));
  }
}

nlohmann::json Json(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

}  // namespace

std::string ToText(const ClusterView& view) {
  const Names names(view);
  std::string out = names.Text();
  AddGateways(view, names, &out);
  AddGroups(view, names, &out);
  AddSpans(view, names, &out);
  AddDrafts(view, names, &out);
  AddRoutes(view, names, &out);
  AddUnreachable(view, &out);
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
                              {"verification", g.verification},
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
                              {"hit_rate", Json(d.hit_rate)},
                              {"states_per_second", Json(d.states_per_second)},
                              {"state_bytes_per_second", Json(d.state_bytes_per_second)}});
  }
  for (const RouteView& r : view.routes) {
    json["routes"].push_back({{"target", r.target},
                              {"draft", r.draft},
                              {"model", r.model},
                              {"sequences", r.sequences},
                              {"outstanding", r.outstanding},
                              {"latency_ms", Json(r.latency_ms)},
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
