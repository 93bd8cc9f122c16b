#ifndef SPECFABRIC_TESTS_GATEWAY_GBNF_REFERENCE_H_
#define SPECFABRIC_TESTS_GATEWAY_GBNF_REFERENCE_H_

// Grammars as trees that tests make up, what they are in GBNF, and which texts they match, by a
// search that has nothing in common with the code under test.

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace specfabric::gateway {

struct ReferenceNode {
  enum class Kind : uint8_t { kText, kSet, kRule, kSequence, kChoice, kRepeat };
  Kind kind = Kind::kSequence;
  std::u32string text = {};  // of kSet: its characters
  bool negated = false;
  int rule = 0;
  int least = 0, most = 0;  // most -1: no limit
  std::vector<ReferenceNode> children = {};
};

struct ReferenceGrammar {
  std::vector<ReferenceNode> rules;  // the first is the root
};

// Of at most `rules` rules, which may need each other in any way.
ReferenceGrammar RandomGrammar(std::mt19937* random, int rules);
// With names, white space and comments drawn at random.
std::string GbnfOf(const ReferenceGrammar& grammar, std::mt19937* random);
// A text that the grammar matches, or something like it; short, if it can be.
std::u32string RandomTextOf(const ReferenceGrammar& grammar, std::mt19937* random);
// Of at most 60 characters.
bool Matches(const ReferenceGrammar& grammar, std::u32string_view text);

std::string Utf8(std::u32string_view text);
std::u32string FromUtf8(std::string_view text);  // that is well-formed

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_TESTS_GATEWAY_GBNF_REFERENCE_H_
