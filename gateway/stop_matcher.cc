#include "gateway/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace specfabric::gateway {

StopMatcher::StopMatcher(const std::vector<std::string>& stops, bool include) : include_(include) {
  for (const std::string& stop : stops) {
    Automaton automaton{.stop = stop, .fallback = std::vector<size_t>(stop.size(), 0)};
    for (size_t i = 1, border = 0; i < stop.size(); ++i) {
      while (border > 0 && stop[i] != stop[border]) border = automaton.fallback[border - 1];
      if (stop[i] == stop[border]) ++border;
      automaton.fallback[i] = border;
    }
    automata_.push_back(std::move(automaton));
  }
}

void StopMatcher::Automaton::Step(char c) {
  while (state > 0 && stop[state] != c) state = fallback[state - 1];
  if (stop[state] == c) ++state;
}

std::string StopMatcher::Push(std::string_view piece, bool may_match) {
  if (matched_) return "";
  if (automata_.empty()) return std::string(piece);
  size_t longest = 0;  // bytes at the end that may belong to a stop string
  for (const char c : piece) {
    held_.push_back(c);
    size_t match = 0;
    longest = 0;
    for (Automaton& automaton : automata_) {
      automaton.Step(c);
      if (automaton.state == automaton.stop.size()) {
        if (may_match) match = std::max(match, automaton.state);
        // Where it does not count, its end may still begin another.
        if (!may_match) automaton.state = automaton.fallback.back();
      }
      longest = std::max(longest, automaton.state);
    }
    if (match > 0) {
      matched_ = true;
      if (!include_) held_.resize(held_.size() - match);
      return std::exchange(held_, {});
    }
  }
  if (piece.empty()) return "";
  if (include_) return std::exchange(held_, {});
  std::string out = held_.substr(0, held_.size() - longest);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::Finish() {
  for (Automaton& automaton : automata_) automaton.state = 0;
  return std::exchange(held_, {});
}

}  // namespace specfabric::gateway
