#ifndef SPECFABRIC_BASE_GRAMMAR_H_
#define SPECFABRIC_BASE_GRAMMAR_H_

// What a request says about the form of its output: the whole of it, end tokens apart, is a text
// that the grammar describes.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace specfabric::base {

// What a grammar is written in.
enum class GrammarLanguage : uint8_t {
  kJsonSchema,  // a JSON schema
  kRegex,       // a regular expression that the whole text matches
  kChoice,      // a JSON list of strings
  kLark,        // llguidance's variant of Lark
};
constexpr int kGrammarLanguages = 4;

struct Grammar {
  GrammarLanguage language = GrammarLanguage::kJsonSchema;
  std::string source = {};  // UTF-8; empty: no grammar
  bool empty() const { return source.empty(); }
  bool operator==(const Grammar&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const Grammar& grammar) {
    return H::combine(std::move(h), grammar.language, grammar.source);
  }
};

// Of `source`; longer ones are refused.
constexpr size_t kMaxGrammarBytes = 1 << 18;

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_GRAMMAR_H_
