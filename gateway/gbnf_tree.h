#ifndef SPECFABRIC_GATEWAY_GBNF_TREE_H_
#define SPECFABRIC_GATEWAY_GBNF_TREE_H_

// A grammar in llama.cpp's GBNF as a tree: rules `name ::= alternatives`, of which `root` is what
// the whole text matches. Newlines count only where they separate rules, so that the EBNF of
// SGLang's and vLLM's grammars is read, too.

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace specfabric::gateway {

constexpr int kGbnfNone = -1;  // no node, no rule

// Code points, both ends included.
struct CodeRange {
  char32_t low = 0, high = 0;
  bool operator==(const CodeRange&) const = default;
};

struct GbnfNode {
  enum class Kind : uint8_t {
    kText,      // `text`, of at least one character
    kSet,       // one character of `set`
    kToken,     // one token of the vocabulary
    kRule,      // what rules[rule] matches
    kSequence,  // the children, one after the other; none: the empty text
    kChoice,    // one of the children
    kRepeat,    // the only child, from `least` to `most` times
  };
  Kind kind = Kind::kSequence;
  int rule = kGbnfNone;
  int least = 0, most = 0;
  std::u32string text = {};
  std::vector<CodeRange> set = {};  // ascending, apart, without surrogates; not empty
  std::string token = {};           // <NAME>, <[ID]> or <[^ID]>: any but that one
  std::vector<int> children = {};   // nodes
};

constexpr int kGbnfNoLimit = std::numeric_limits<int>::max();  // GbnfNode::most
// Of `least` and `most`, kGbnfNoLimit apart.
constexpr int kMaxGbnfRepeat = 1 << 16;
// Levels of parentheses in a rule; and of nodes, of which each may make three.
constexpr int kMaxGbnfGroups = 64;
constexpr int kMaxGbnfDepth = 3 * kMaxGbnfGroups;

struct GbnfRule {
  std::string name;
  int begin = 0, end = 0;  // its nodes, each behind its children; the last one is the whole of it
  int body() const { return end - 1; }
};

struct GbnfTree {
  std::vector<GbnfNode> nodes;
  std::vector<GbnfRule> rules;
  int root = 0;  // rule
};

// In linear time. InvalidArgument: one line that says where and why `text` is no such grammar. Of
// the result every rule is defined, and matches some text.
absl::StatusOr<GbnfTree> ParseGbnf(std::string_view text);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_GBNF_TREE_H_
