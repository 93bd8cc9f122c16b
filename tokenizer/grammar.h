#ifndef SPECFABRIC_TOKENIZER_GRAMMAR_H_
#define SPECFABRIC_TOKENIZER_GRAMMAR_H_

// Which tokens may come next in a text that a grammar describes, by llguidance (an Earley parser
// over derivatives of regular expressions, and the vocabulary as a trie of bytes). Implemented in
// Rust behind tokenizer/c_api.h.
//
// Where the grammar forces bytes, and the tokenizer keeps the bytes of every text, the tokens are
// forced as well: those into which the tokenizer cuts these bytes. Otherwise every token may come
// next whose bytes can go on.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/grammar.h"
#include "base/types.h"
#include "tokenizer/tokenizer.h"

struct SfGrammars;  // tokenizer/c_api.h
struct SfMatcher;

namespace specfabric::tokenizer {

// Where one text is in its grammar. What it answers depends on the tokens consumed alone, rolled
// back ones left out. One thread at a time.
class GrammarMatcher {
 public:
  GrammarMatcher(GrammarMatcher&&) = default;
  GrammarMatcher& operator=(GrammarMatcher&&) = default;

  // At the same place of the same grammar.
  GrammarMatcher Clone() const;
  // InvalidArgument: the grammar does not allow these tokens, one after the other; the matcher is
  // then of no use any more.
  absl::Status Consume(absl::Span<const base::TokenId> tokens);
  // Takes back the last `count` tokens.
  absl::Status Rollback(int count);
  // How many of the tokens, one after the other, the grammar allows.
  int Allowed(absl::Span<const base::TokenId> tokens);
  // Bit id % 32 of words[id / 32]: whether the token may come next; at least one bit is set. Only
  // end tokens may once the grammar allows no more text. Internal: the grammar has become too
  // complex to follow.
  absl::Status Mask(absl::Span<uint32_t> words);
  // Tokens that must come next, whatever is chosen, as far as they are known; often none.
  std::vector<base::TokenId> Forced();
  bool Accepts();        // the text so far is a whole one
  bool stopped() const;  // the grammar allows no more text

 private:
  friend class Grammars;
  struct Destroy {
    void operator()(SfMatcher* handle) const;
  };
  explicit GrammarMatcher(SfMatcher* handle) : handle_(handle) {}
  std::unique_ptr<SfMatcher, Destroy> handle_;
};

// Compiles grammars for the vocabulary of one tokenizer. Every method may be called from any
// thread.
class Grammars {
 public:
  // Takes some tenths of a second with a large vocabulary. FailedPrecondition: the tokenizer has no
  // end token. Lives on without the tokenizer.
  static absl::StatusOr<std::unique_ptr<Grammars>> Create(const Tokenizer& tokenizer);

  // At the beginning of a text. InvalidArgument: that is no such grammar, or one too large; one
  // line that can be sent to a client.
  absl::StatusOr<GrammarMatcher> Compile(const base::Grammar& grammar) const;

 private:
  struct Destroy {
    void operator()(SfGrammars* handle) const;
  };
  explicit Grammars(SfGrammars* handle) : handle_(handle) {}
  const std::unique_ptr<SfGrammars, Destroy> handle_;
};

// Words of a mask of so many tokens.
constexpr size_t MaskWords(int32_t vocabulary) {
  return (static_cast<size_t>(vocabulary) + 31) / 32;
}

}  // namespace specfabric::tokenizer

#endif  // SPECFABRIC_TOKENIZER_GRAMMAR_H_
