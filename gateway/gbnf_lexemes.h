#ifndef SPECFABRIC_GATEWAY_GBNF_LEXEMES_H_
#define SPECFABRIC_GATEWAY_GBNF_LEXEMES_H_

// Which parts of a GBNF grammar may be terminals of a parser whose lexer is greedy.
//
// GBNF knows no lexer: whatever way there is to read a text counts. llguidance's takes the longest
// text that one of the terminals allowed here matches, and never goes back. Both agree where each
// terminal is one character, but then the parser is asked for every character of every token of the
// vocabulary. So larger parts become terminals, of parts that need no recursion, wherever greed
// cannot lose a text: the next character alone tells whether such a terminal begins, and whether it
// goes on once it may end.

#include <vector>

#include "gateway/gbnf_tree.h"

namespace specfabric::gateway {

struct GbnfLexemes {
  // By node: it is one terminal where it is used in a rule. Sets are, and texts of one character.
  std::vector<bool> whole;
  // By node: equal for nodes that look the same; kGbnfNone for those that cannot be terminals,
  // since they need recursion, or tokens by name.
  std::vector<int> identity;
};

// In bounded time; where that does not suffice, all characters are terminals of their own.
GbnfLexemes ChooseLexemes(const GbnfTree& tree);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_GBNF_LEXEMES_H_
