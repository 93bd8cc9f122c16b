#ifndef SPECFABRIC_GATEWAY_STOP_MATCHER_H_
#define SPECFABRIC_GATEWAY_STOP_MATCHER_H_

// Cuts a growing text at the first stop string, and holds back text that may be the beginning of
// one.
//
// The match that ends first is taken, the longest if several end there; so the result does not
// depend on how the text was cut into pieces. An Aho-Corasick automaton: the time for each byte
// does not depend on the number and length of the stop strings.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace specfabric::gateway {

// The automaton of a list of stop strings, none of them empty. Texts may share it.
class StopPatterns {
 public:
  explicit StopPatterns(const std::vector<std::string>& stops);

  static constexpr int32_t kRoot = 0;
  bool empty() const { return nodes_.size() == 1; }
  // The state after one more byte. A state is the longest suffix of the text that is a prefix of a
  // stop string.
  int32_t Step(int32_t state, char c) const;
  size_t depth(int32_t state) const { return nodes_[state].depth; }
  // The longest stop string that the text ends with; 0 if there is none.
  size_t match(int32_t state) const { return nodes_[state].match; }
  // That string.
  std::string MatchedText(int32_t state) const;
  // The state for a text that ends with stop strings which do not count: its longest suffix that is
  // a proper prefix of a stop string.
  int32_t Unmatched(int32_t state) const;

 private:
  struct Node {
    int32_t first_child = 0, children = 0;  // adjacent, ascending by byte
    int32_t parent = kRoot;
    int32_t fallback = kRoot;       // the next shorter suffix that is a prefix of one
    uint32_t depth = 0, match = 0;  // bytes
    unsigned char byte = 0;
  };

 public:
  // Memory for each byte of a stop string.
  static constexpr size_t kBytesAByte = sizeof(Node);

 private:
  int32_t Child(int32_t state, char c) const;  // -1: none
  void AddNodes(const std::vector<std::string_view>& sorted);
  void Link();

  std::vector<Node> nodes_;  // by depth
};

class StopMatcher {
 public:
  // From pieces and stop strings of whole UTF-8 characters come pieces of whole characters.
  // `include`: the text is cut after the stop string, not before it, so nothing is held back.
  explicit StopMatcher(std::shared_ptr<const StopPatterns> patterns, bool include = false)
      : patterns_(std::move(patterns)), include_(include) {}

  // Adds `piece` and returns the text that is certain not to belong to a stop string. Returns
  // nothing after a match. Stop strings that end in a piece with `may_match` false do not count.
  std::string Push(std::string_view piece, bool may_match = true);
  // At the end of the text: the text that was held back.
  std::string Finish();

  bool matched() const { return !match_.empty(); }
  const std::string& match() const { return match_; }  // the stop string; empty: none so far

 private:
  std::shared_ptr<const StopPatterns> patterns_;
  bool include_;
  int32_t state_ = StopPatterns::kRoot;
  std::string held_;
  std::string match_;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_STOP_MATCHER_H_
