#ifndef SPECFABRIC_GATEWAY_STOP_MATCHER_H_
#define SPECFABRIC_GATEWAY_STOP_MATCHER_H_

// Cuts a growing text at the first stop string, and never lets out text that may turn out to be
// the beginning of one.
//
// The match that ends first wins, of those the longest; so the result does not depend on how the
// text was cut into pieces. One Knuth-Morris-Pratt automaton a stop string: constant work a byte.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace specfabric::gateway {

class StopMatcher {
 public:
  // `stops`: none of them empty. Pieces and stops of whole UTF-8 characters give pieces of whole
  // characters. `include`: the text is cut behind the stop string, not before it, so that nothing
  // has to be held back.
  explicit StopMatcher(const std::vector<std::string>& stops, bool include = false);

  // What may go out now that `piece` has come. Nothing goes out after a match. Stop strings that
  // end in a piece with `may_match` false do not count.
  std::string Push(std::string_view piece, bool may_match = true);
  // The text is over: what was held back.
  std::string Finish();

  bool matched() const { return matched_; }

 private:
  struct Automaton {
    std::string stop;
    std::vector<size_t> fallback;  // [i]: longest border of stop[0, i]
    size_t state = 0;              // bytes of `stop` that the text ends with
    void Step(char c);
  };

  std::vector<Automaton> automata_;
  bool include_;
  std::string held_;
  bool matched_ = false;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_STOP_MATCHER_H_
