#ifndef SPECFABRIC_GATEWAY_STOP_MATCHER_H_
#define SPECFABRIC_GATEWAY_STOP_MATCHER_H_

// Cuts a growing text at the first stop string, and never lets out text that may turn out to be
// the beginning of one.
//
// The match that ends first wins, of those the longest; so the result does not depend on how the
// text was cut into pieces. An Aho-Corasick automaton: the work a byte does not depend on how many
// stop strings there are or how long they are.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace specfabric::gateway {

// The automaton of a list of stop strings, none of them empty; many texts may share it.
class StopPatterns {
 public:
  explicit StopPatterns(const std::vector<std::string>& stops);

  static constexpr int32_t kRoot = 0;
  bool empty() const { return nodes_.size() == 1; }
  // The state after one more byte: the longest end of the text that begins a stop string.
  int32_t Step(int32_t state, char c) const;
  size_t depth(int32_t state) const { return nodes_[state].depth; }
  // The longest stop string that the text ends with; 0 if there is none.
  size_t match(int32_t state) const { return nodes_[state].match; }
  // The state for a text that ends with stop strings which do not count: the longest end of it that
  // may still become one.
  int32_t Unmatched(int32_t state) const;

 private:
  struct Node {
    int32_t first_child = 0, children = 0;  // adjacent, ascending by byte
    int32_t fallback = kRoot;               // the next shorter end of the text that begins one
    uint32_t depth = 0, match = 0;          // bytes
    unsigned char byte = 0;
  };

 public:
  // The memory that a byte of a stop string takes.
  static constexpr size_t kBytesAByte = sizeof(Node);

 private:
  int32_t Child(int32_t state, char c) const;  // -1: none
  void AddNodes(const std::vector<std::string_view>& sorted);
  void Link();

  std::vector<Node> nodes_;  // by depth
};

class StopMatcher {
 public:
  // Pieces and stops of whole UTF-8 characters give pieces of whole characters. `include`: the text
  // is cut behind the stop string, not before it, so that nothing has to be held back.
  explicit StopMatcher(std::shared_ptr<const StopPatterns> patterns, bool include = false)
      : patterns_(std::move(patterns)), include_(include) {}

  // What may go out now that `piece` has come. Nothing goes out after a match. Stop strings that
  // end in a piece with `may_match` false do not count.
  std::string Push(std::string_view piece, bool may_match = true);
  // The text is over: what was held back.
  std::string Finish();

  bool matched() const { return matched_; }

 private:
  std::shared_ptr<const StopPatterns> patterns_;
  bool include_;
  int32_t state_ = StopPatterns::kRoot;
  std::string held_;
  bool matched_ = false;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_STOP_MATCHER_H_
