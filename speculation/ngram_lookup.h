#ifndef SPECFABRIC_SPECULATION_NGRAM_LOOKUP_H_
#define SPECFABRIC_SPECULATION_NGRAM_LOOKUP_H_

// Drafting without a model: what followed the present end of a text where it stood before.
//
// An index of one sequence's tokens (prompt and output). The last min_match tokens are a key; of
// each key the places where it ended before are chained, latest first, as LZ77 compressors chain
// them (RFC 1951, section 4). A guess looks at the latest `candidates` of them, extends each match
// backwards, and merges what follows them into one tree. After prompt lookup decoding (Saxena 2023)
// and SuffixDecoding (arXiv 2411.04975). Deterministic; one thread.

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "base/types.h"
#include "speculation/tree.h"

namespace specfabric::speculation {

struct NgramLookupOptions {
  int32_t min_match = 3;    // tokens that must agree, at least 1
  int32_t max_match = 16;   // a longer match counts as one of this length
  int32_t candidates = 32;  // earlier places looked at, the latest first
};

class NgramLookup {
 public:
  explicit NgramLookup(const NgramLookupOptions& options = {});

  // Amortised O(1) a token; about 20 bytes a token, and 12 more for each key that is new.
  void Append(base::TokenId token);
  void Append(absl::Span<const base::TokenId> tokens) {
    for (base::TokenId token : tokens) Append(token);
  }
  // Forgets all but the first `length` tokens, at most size().
  void Truncate(int32_t length);
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  const std::vector<base::TokenId>& tokens() const { return tokens_; }

  // The tree below the last token, which must be there: at most max_nodes nodes (and fewer than
  // kMaxDraftNodes) below the root, max_depth levels. Only the root if the end of the text never
  // stood before. A continuation that reaches the end goes on as the guess itself does, so that
  // whatever repeats is guessed to go on repeating.
  //
  // A match of m tokens counts 2^(m - min_match), and each guess below the root makes it one token
  // longer. The score of a node is the log of
  //     sum of those that pass through it / (1 + sum of those that pass through its parent),
  // where the 1 stands for what was never seen. Best-first by the product along the path; siblings
  // stand with the heaviest first, equal ones with the latest first.
  TokenTree Propose(int32_t max_nodes, int32_t max_depth) const;

 private:
  struct Match {
    int32_t next = 0;  // the place of the token that followed
    double weight = 0;
  };
  class Grower;

  uint64_t Key(int32_t end) const;  // of the min_match tokens before `end`
  bool SameKey(int32_t a, int32_t b) const;
  std::vector<Match> Matches() const;  // the latest first

  NgramLookupOptions options_;
  std::vector<base::TokenId> tokens_;
  std::vector<int32_t> previous_;  // [tokens]: one before with the key that ends there, or -1
  absl::flat_hash_map<uint64_t, int32_t> latest_;  // by key: where it ended last
};

}  // namespace specfabric::speculation

#endif  // SPECFABRIC_SPECULATION_NGRAM_LOOKUP_H_
