#ifndef SPECFABRIC_GATEWAY_GRAMMAR_RULES_H_
#define SPECFABRIC_GATEWAY_GRAMMAR_RULES_H_

// Parts of grammars in llguidance's variant of Lark, to make larger ones of.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/grammar.h"
#include "base/types.h"
#include "gateway/json_parse.h"

namespace specfabric::gateway {

// The texts of `grammar`, as the right side of a rule. Not for an empty grammar.
std::string RuleOf(const base::Grammar& grammar);

// The JSON texts of a schema. As in a grammar of a schema alone (WHITE_SPACE in
// tokenizer/rust/src/grammar.rs) a space, or a new line that is indented, may stand between their
// parts: with any white space a model can go on for ever.
std::string JsonRule(Json schema);

// A grammar of the texts in which none of the words occurs.
std::string TextWithout(const std::vector<std::string>& words);

// A mark as a token, or as text.
std::string MarkRule(std::string_view text, std::optional<base::TokenId> token);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_GRAMMAR_RULES_H_
