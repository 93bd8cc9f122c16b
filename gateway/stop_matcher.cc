#include "gateway/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace specfabric::gateway {

StopPatterns::StopPatterns(const std::vector<std::string>& stops) {
  std::vector<std::string_view> sorted(stops.begin(), stops.end());
  std::sort(sorted.begin(), sorted.end());
  AddNodes(sorted);
  Link();
}

// Breadth first, so that the children of a node are adjacent and its fallback, which is less deep,
// comes before it. Each node stands for the stop strings that share its bytes, a range of `sorted`.
void StopPatterns::AddNodes(const std::vector<std::string_view>& sorted) {
  struct Range {
    size_t begin, end;
  };
  std::vector<Range> ranges = {{0, sorted.size()}};
  nodes_.emplace_back();
  for (size_t at = 0; at < nodes_.size(); ++at) {
    auto [next, end] = ranges[at];
    const uint32_t depth = nodes_[at].depth;
    for (; next < end && sorted[next].size() == depth; ++next) nodes_[at].match = depth;
    nodes_[at].first_child = static_cast<int32_t>(nodes_.size());
    while (next < end) {
      const auto byte = static_cast<unsigned char>(sorted[next][depth]);
      const size_t begin = next;
      while (next < end && static_cast<unsigned char>(sorted[next][depth]) == byte) ++next;
      nodes_.push_back({.parent = static_cast<int32_t>(at), .depth = depth + 1, .byte = byte});
      ranges.push_back({begin, next});
      ++nodes_[at].children;
    }
  }
}

void StopPatterns::Link() {
  for (size_t at = 0; at < nodes_.size(); ++at) {
    const Node node = nodes_[at];
    for (int32_t child = node.first_child; child < node.first_child + node.children; ++child) {
      Node& next = nodes_[child];
      if (at != kRoot) next.fallback = Step(node.fallback, static_cast<char>(next.byte));
      next.match = std::max(next.match, nodes_[next.fallback].match);
    }
  }
}

int32_t StopPatterns::Child(int32_t state, char c) const {
  const auto byte = static_cast<unsigned char>(c);
  const auto begin = nodes_.begin() + nodes_[state].first_child;
  const auto end = begin + nodes_[state].children;
  const auto found = std::lower_bound(
      begin, end, byte, [](const Node& node, unsigned char wanted) { return node.byte < wanted; });
  return found == end || found->byte != byte ? -1 : static_cast<int32_t>(found - nodes_.begin());
}

int32_t StopPatterns::Step(int32_t state, char c) const {
  for (;;) {
    if (const int32_t next = Child(state, c); next >= 0) return next;
    if (state == kRoot) return kRoot;
    state = nodes_[state].fallback;
  }
}

std::string StopPatterns::MatchedText(int32_t state) const {
  std::string text(nodes_[state].match, '\0');
  // The state's own bytes, from the last one, end with the match.
  for (size_t i = text.size(); i > 0; --i, state = nodes_[state].parent) {
    text[i - 1] = static_cast<char>(nodes_[state].byte);
  }
  return text;
}

int32_t StopPatterns::Unmatched(int32_t state) const {
  while (state != kRoot && nodes_[state].children == 0) state = nodes_[state].fallback;
  return state;
}

std::string StopMatcher::Push(std::string_view piece, bool may_match) {
  if (matched()) return {};
  if (patterns_->empty()) return std::string(piece);
  for (const char c : piece) {
    held_.push_back(c);
    state_ = patterns_->Step(state_, c);
    const size_t match = patterns_->match(state_);
    if (match == 0) continue;
    if (may_match) {
      match_ = patterns_->MatchedText(state_);
      if (!include_) held_.erase(held_.size() - match);
      return std::exchange(held_, {});
    }
    state_ = patterns_->Unmatched(state_);
  }
  if (include_) return std::exchange(held_, {});
  // Holds back what may belong to a stop string.
  std::string rest(held_, held_.size() - patterns_->depth(state_));
  held_.erase(held_.size() - rest.size());
  return std::exchange(held_, std::move(rest));
}

std::string StopMatcher::Finish() {
  state_ = StopPatterns::kRoot;
  return std::exchange(held_, {});
}

}  // namespace specfabric::gateway
