#include "speculation/growth.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace specfabric::speculation {
namespace {

// What one that was sent counts from pass to pass, and from when on not at all.
constexpr float kSentDecay = 0.97f, kMinSentCost = 0.05f;
constexpr int kMaxBelowRoot = kMaxDraftNodes - 1;

absl::Status Bad(const std::string& text, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("tree policy \"", text, "\": ", why,
                   "; allowed are children for each depth, as in \"1,1,3,1,1\", or "
                   "\"best:NODES[:CHILDREN[:DEPTH]]\", with at most ",
                   kMaxBelowRoot, " nodes"));
}

// Positive integers that are no larger than the largest tree.
absl::StatusOr<std::vector<int32_t>> Counts(const std::string& text, const std::string& list,
                                            char separator) {
  std::vector<int32_t> counts;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(list, separator))) {
    int32_t count = 0;
    if (!absl::SimpleAtoi(part, &count) || count < 1 || count > kMaxBelowRoot) {
      return Bad(text, absl::StrCat("\"", part, "\" is not a number from 1 to ", kMaxBelowRoot));
    }
    counts.push_back(count);
  }
  return counts;
}

int64_t NodesOf(const std::vector<int32_t>& widths) {
  int64_t nodes = 0, level = 1;
  for (int32_t width : widths) {
    level *= width;
    nodes += level;
    if (nodes > kMaxBelowRoot) break;  // before it can overflow
  }
  return nodes;
}

}  // namespace

absl::StatusOr<GrowthPolicy> GrowthPolicy::Parse(std::string_view given) {
  const std::string text(given);
  const std::string best = "best:";
  GrowthPolicy policy;
  if (!absl::StartsWith(text, best)) {
    auto widths = Counts(text, text, ',');
    if (!widths.ok()) return widths.status();
    if (NodesOf(*widths) > kMaxBelowRoot) return Bad(text, "has too many nodes");
    policy.widths = *std::move(widths);
    return policy;
  }
  auto counts = Counts(text, text.substr(best.size()), ':');
  if (!counts.ok()) return counts.status();
  if (counts->size() > 3) return Bad(text, "has more than three numbers");
  policy.budget = counts->at(0);
  if (counts->size() > 1) policy.max_children = counts->at(1);
  if (counts->size() > 2) policy.max_depth = counts->at(2);
  return policy;
}

std::string GrowthPolicy::ToString() const {
  if (!widths.empty()) return absl::StrJoin(widths, ",");
  return absl::StrCat("best:", budget, ":", max_children, ":", max_depth);
}

GrowthPolicy GrowthPolicy::Shallower(int32_t depth) const {
  GrowthPolicy policy = *this;
  depth = std::max(depth, 1);
  policy.max_depth = std::min(max_depth, depth);
  if (static_cast<int32_t>(widths.size()) > depth) policy.widths.resize(depth);
  return policy;
}

GrowthPolicy GrowthPolicy::Within(int32_t nodes) const {
  if (widths.empty()) return *this;
  GrowthPolicy policy = Shallower(nodes);
  std::vector<int32_t>& within = policy.widths;
  std::fill(within.begin(), within.end(), 1);
  for (size_t level = 0; level < within.size(); ++level) {
    while (within[level] < widths[level] && NodesOf(within) < nodes) {
      ++within[level];
      if (NodesOf(within) <= nodes) continue;
      // Growth then ends in the middle of a level: of the last one, or this is too wide.
      if (NodesOf({within.begin(), within.end() - 1}) >= nodes) --within[level];
      return policy;
    }
  }
  return policy;
}

int GrowthPolicy::Depth() const {
  return widths.empty() ? max_depth : static_cast<int>(widths.size());
}

int GrowthPolicy::MaxNodes() const {
  return widths.empty() ? budget : static_cast<int>(NodesOf(widths));
}

int GrowthPolicy::MaxNodesWithChildren() const {
  if (widths.empty()) return 0;
  return 1 + static_cast<int>(NodesOf({widths.begin(), widths.end() - 1}));
}

TreeGrower::TreeGrower(const GrowthPolicy& policy, base::TokenId root, int max_nodes,
                       float cost_per_row)
    : policy_(policy),
      max_nodes_(std::max(0, std::min({max_nodes, policy.MaxNodes(), kMaxBelowRoot}))),
      cost_per_row_(cost_per_row),
      beam_((max_nodes_ - 1) / std::max(1, policy.max_depth) + 1),
      tree_(TokenTree::Root(root)),
      depth_{0},
      path_score_{0.0f} {
  if (max_nodes_ > 0) frontier_.push_back(0);
}

bool TreeGrower::Expandable(int node) const {
  return std::find(frontier_.begin(), frontier_.end(), node) != frontier_.end();
}

int TreeGrower::Width(int depth) const {
  if (best_first()) return depth < policy_.max_depth ? policy_.max_children : 0;
  return depth < static_cast<int>(policy_.widths.size()) ? policy_.widths[depth] : 0;
}

void TreeGrower::Expand(int node, const std::vector<sampling::ScoredToken>& candidates,
                        const std::vector<float>& logprobs) {
  assert(candidates.size() == logprobs.size());
  const auto at = std::find(frontier_.begin(), frontier_.end(), node);
  if (at == frontier_.end()) return;
  frontier_.erase(at);

  const int width = std::min(Width(depth_[node]), static_cast<int>(candidates.size()));
  if (best_first()) {
    std::vector<float> sorted_logprobs(logprobs.begin(), logprobs.begin() + width);
    for (float& logprob : sorted_logprobs) {
      if (std::isnan(logprob)) logprob = -std::numeric_limits<float>::infinity();
    }
    std::sort(sorted_logprobs.begin(), sorted_logprobs.end(), std::greater<>());
    for (int i = 0; i < width; ++i) {
      pool_.push_back({path_score_[node] + sorted_logprobs[i], drawn_++, node, candidates[i].token,
                       logprobs[i]});
      std::push_heap(pool_.begin(), pool_.end(), Later);
    }
  } else {
    for (int i = 0; i < width && remaining() > 0; ++i) {
      const float path = path_score_[node] + logprobs[i];
      next_.push_back(AddNode(node, candidates[i].token, logprobs[i], path));
    }
  }
  if (remaining() == 0) frontier_.clear();
  if (frontier_.empty()) StartNextStep();
}

void TreeGrower::Fill() {
  while (AnyToAdmit()) AdmitBest();
}

// The order of a heap: true if `a` enters the tree after `b`.
bool TreeGrower::Later(const Candidate& a, const Candidate& b) {
  return a.path < b.path || (a.path == b.path && a.order > b.order);
}

int TreeGrower::AddNode(int parent, base::TokenId token, float logprob, float path) {
  depth_.push_back(depth_[parent] + 1);
  path_score_.push_back(path);
  return tree_.Add(parent, token, logprob);
}

bool TreeGrower::AnyToAdmit() const {
  return remaining() > 0 && !pool_.empty() && std::exp(pool_.front().path) >= cost_per_row_;
}

int TreeGrower::AdmitBest() {
  std::pop_heap(pool_.begin(), pool_.end(), Later);
  const Candidate best = pool_.back();
  pool_.pop_back();
  return AddNode(best.parent, best.token, best.logprob, best.path);
}

float TreeGrower::Gain() const {
  float gain = 0.0f;
  for (int32_t node : frontier_) gain += std::exp(path_score_[node]);
  return gain;
}

void TreeGrower::Refill() {
  if (!best_first() || frontier_.empty()) return;
  while (static_cast<int>(frontier_.size()) < beam_ && AnyToAdmit()) {
    const int node = AdmitBest();
    if (Width(depth_[node]) > 0) frontier_.push_back(node);
  }
  if (remaining() == 0) frontier_.clear();
}

void TreeGrower::StartNextStep() {
  std::vector<int32_t> added = std::exchange(next_, {});
  do {
    for (int i = 0; best_first() && i < beam_ && AnyToAdmit(); ++i) {
      added.push_back(AdmitBest());
    }
    if (remaining() == 0) return;
    for (int32_t node : added) {
      if (Width(depth_[node]) > 0) frontier_.push_back(node);
    }
    added.clear();
    // Nodes at the depth limit are not expanded: others may use what is left.
  } while (frontier_.empty() && AnyToAdmit());
  const auto pays_for_row = [&](int32_t node) {
    return std::exp(path_score_[node]) >= cost_per_row_;
  };
  if (std::none_of(frontier_.begin(), frontier_.end(), pays_for_row)) frontier_.clear();
}

void GrowthRound::Join(uint64_t sequence, float cost_per_second) {
  members_[sequence] = {.cost_per_second = cost_per_second, .growing = true};
}

void GrowthRound::Leave(uint64_t sequence, bool sent) {
  const auto member = members_.find(sequence);
  if (member == members_.end()) return;
  if (sent) {
    member->second.growing = false;
  } else {
    members_.erase(member);
  }
}

bool GrowthRound::Pays(const Pass& pass, double seconds) {
  float cost_per_second = 0;
  for (auto& [sequence, member] : members_) {
    cost_per_second += member.cost_per_second;
    if (!member.growing) member.cost_per_second *= kSentDecay;
  }
  std::erase_if(members_, [](const auto& entry) {
    return !entry.second.growing && entry.second.cost_per_second < kMinSentCost;
  });
  return pass.gain >= cost_per_second * static_cast<float>(seconds) * (1 + pass.spared);
}

}  // namespace specfabric::speculation
