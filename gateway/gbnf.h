#ifndef SPECFABRIC_GATEWAY_GBNF_H_
#define SPECFABRIC_GATEWAY_GBNF_H_

// Grammars in llama.cpp's GBNF (gbnf_tree.h), written anew in llguidance's variant of Lark. Pure.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace specfabric::gateway {

// Whether a grammar that may be GBNF or Lark is GBNF: its first rule is written with `::=`.
bool IsGbnf(std::string_view grammar);

// A grammar of exactly the texts that `gbnf` matches; where a token of the vocabulary is asked for
// by name or id, and text may stand there, too, that token is not read as text. Takes time that is
// linear in the size, and a tenth of a second at most to choose terminals (gbnf_lexemes.h).
// InvalidArgument: one line that says where and why `gbnf` is no such grammar.
absl::StatusOr<std::string> LarkOfGbnf(std::string_view gbnf);

// The parser that reads the result recurses as deeply as rules use each other: a rule at the end of
// a longer chain of them is refused.
constexpr int kMaxGbnfChain = 500;

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_GBNF_H_
