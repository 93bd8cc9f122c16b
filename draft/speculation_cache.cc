#include "draft/speculation_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace specfabric::draft {

void SpeculationCache::Reset(base::TokenId root) {
  tree_ = speculation::TokenTree::Root(root);
  path_ = {0.0f};
  slot_ = {-1};
  sent_ = {1};
  candidates_.clear();
  candidates_.resize(1);
  levels_.clear();
  levels_.resize(1);
  states_.clear();
  states_.resize(1);
  slots_used_ = 0;
}

void SpeculationCache::KeepRoot() {
  Levels levels = std::move(levels_[0]);
  Reset(tree_.tokens[0]);
  SetLevels(0, std::move(levels));
}

void SpeculationCache::SetLevels(int node, Levels levels) {
  if (!levels.empty()) candidates_[node] = levels[0];
  levels_[node] = std::move(levels);
}

int SpeculationCache::FindOrAdd(int parent, base::TokenId token, float logprob) {
  if (const int child = Child(parent, token); child >= 0) return child;
  path_.push_back(path_[parent] + logprob);
  slot_.push_back(-1);
  sent_.push_back(0);
  candidates_.emplace_back();
  levels_.emplace_back();
  states_.emplace_back();
  return tree_.Add(parent, token, logprob);
}

int32_t SpeculationCache::TakeSlot(int node) {
  SPECFABRIC_CHECK(slots_used_ < kSlots);
  return slot_[node] = slots_used_++;
}

int32_t SpeculationCache::SeePath(int node, absl::Span<uint64_t> mask) const {
  int32_t depth = 0;
  for (int32_t a = node; a > 0; a = tree_.parents[a], ++depth) {
    mask[slot_[a] / 64] |= uint64_t{1} << (slot_[a] % 64);
  }
  return depth;
}

Outcome SpeculationCache::MissAt(int parent, base::TokenId token) const {
  if (candidates_[parent].empty()) return Outcome::kNotReached;
  const bool is_candidate =
      std::any_of(candidates_[parent].begin(), candidates_[parent].end(),
                  [&](const Candidate& c) { return c.scored.token == token; });
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
    moved.slots.push_back(slot_[node]);
    ++moved.committed;
  }
  moved.outcome = candidates_[node].empty() ? Outcome::kNotGrown : Outcome::kHit;
  KeepBelow(node, &moved.slots);
  return moved;
}

void SpeculationCache::KeepBelow(int root, std::vector<int32_t>* slots) {
  SpeculationCache kept;
  kept.Reset(tree_.tokens[root]);
  kept.candidates_[0] = std::move(candidates_[root]);
  kept.levels_[0] = std::move(levels_[root]);
  kept.states_[0] = std::move(states_[root]);
  std::vector<int32_t> place(tree_.size(), -1);  // in `kept`
  std::vector<std::pair<int32_t, int32_t>> by_slot;
  place[root] = 0;
  for (int node = root + 1; node < tree_.size(); ++node) {
    const int parent = place[tree_.parents[node]];
    if (parent < 0) continue;
    place[node] = kept.tree_.Add(parent, tree_.tokens[node], tree_.scores[node]);
    kept.path_.push_back(path_[node] - path_[root]);
    kept.slot_.push_back(-1);
    kept.sent_.push_back(0);
    kept.candidates_.push_back(std::move(candidates_[node]));
    kept.levels_.push_back(std::move(levels_[node]));
    kept.states_.push_back(std::move(states_[node]));
    if (slot_[node] >= 0) by_slot.emplace_back(slot_[node], place[node]);
  }
  std::sort(by_slot.begin(), by_slot.end());
  for (const auto& [slot, node] : by_slot) {
    slots->push_back(slot);
    kept.slot_[node] = kept.slots_used_++;
  }
  *this = std::move(kept);
}

}  // namespace specfabric::draft
