#include "draft/speculation_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace specfabric::draft {

void SpeculationCache::Reset(base::TokenId root) {
  tree_ = speculation::TokenTree::Root(root);
  nodes_.assign(1, {.sent = true});
  slots_used_ = 0;
}

void SpeculationCache::KeepRoot() {
  Levels levels = std::move(nodes_[0].levels);
  Reset(tree_.tokens[0]);
  SetLevels(0, std::move(levels));
}

void SpeculationCache::SetLevels(int node, Levels levels) {
  if (!levels.empty()) nodes_[node].candidates = levels[0];
  nodes_[node].levels = std::move(levels);
}

int SpeculationCache::FindOrAdd(int parent, base::TokenId token, float logprob) {
  if (const int child = Child(parent, token); child >= 0) return child;
  nodes_.push_back({.path = path(parent) + logprob});
  return tree_.Add(parent, token, logprob);
}

int32_t SpeculationCache::TakeSlot(int node) {
  SPECFABRIC_CHECK(slots_used_ < kSlots);
  return nodes_[node].slot = slots_used_++;
}

int32_t SpeculationCache::SeePath(int node, absl::Span<uint64_t> mask) const {
  int32_t depth = 0;
  for (int32_t a = node; a > 0; a = tree_.parents[a], ++depth) {
    mask[slot(a) / 64] |= uint64_t{1} << (slot(a) % 64);
  }
  return depth;
}

Outcome SpeculationCache::MissAt(int parent, base::TokenId token) const {
  const auto known = candidates(parent);
  if (known.empty()) return Outcome::kNotReached;
  const bool is_candidate = std::any_of(
      known.begin(), known.end(), [&](const Candidate& c) { return c.scored.token == token; });
  return is_candidate ? Outcome::kNotGrown : Outcome::kNotCandidate;
}

// A child always has a later slot than its parent, since it was run later: the slots of the path
// and those below its end ascend.
SpeculationCache::Moved SpeculationCache::Follow(absl::Span<const base::TokenId> tokens) {
  Moved moved;
  int node = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int child = Child(node, tokens[i]);
    if (child < 0 || !run(child)) {
      moved.outcome = i + 1 == tokens.size() ? MissAt(node, tokens[i]) : Outcome::kNotReached;
      Reset(tokens.back());
      return moved;
    }
    node = child;
    moved.slots.push_back(slot(node));
    ++moved.committed;
  }
  moved.outcome = candidates(node).empty() ? Outcome::kNotGrown : Outcome::kHit;
  KeepBelow(node, &moved.slots);
  return moved;
}

// A node below another root: neither run nor sent there.
SpeculationCache::Node SpeculationCache::MovedTo(float path, Node* from) {
  return {.path = path,
          .candidates = std::move(from->candidates),
          .levels = std::move(from->levels),
          .state = std::move(from->state)};
}

void SpeculationCache::KeepBelow(int root, std::vector<int32_t>* slots) {
  SpeculationCache kept;
  kept.Reset(tree_.tokens[root]);
  kept.nodes_[0] = MovedTo(0.0f, &nodes_[root]);
  kept.nodes_[0].sent = true;
  std::vector<int32_t> place(tree_.size(), -1);  // in `kept`
  std::vector<std::pair<int32_t, int32_t>> by_slot;
  place[root] = 0;
  for (int node = root + 1; node < tree_.size(); ++node) {
    const int parent = place[tree_.parents[node]];
    if (parent < 0) continue;
    place[node] = kept.tree_.Add(parent, tree_.tokens[node], tree_.scores[node]);
    if (slot(node) >= 0) by_slot.emplace_back(slot(node), place[node]);
    kept.nodes_.push_back(MovedTo(path(node) - path(root), &nodes_[node]));
  }
  std::sort(by_slot.begin(), by_slot.end());
  for (const auto& [slot, node] : by_slot) {
    slots->push_back(slot);
    kept.nodes_[node].slot = kept.slots_used_++;
  }
  *this = std::move(kept);
}

}  // namespace specfabric::draft
