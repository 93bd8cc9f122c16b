#ifndef SPECFABRIC_SPECULATION_NGRAM_LOOKUP_H_
#define SPECFABRIC_SPECULATION_NGRAM_LOOKUP_H_

// Drafting without a model: proposes the tokens that followed earlier occurrences of the text's
// end.
//
// Indexes one sequence's tokens (prompt and output). The key is the last min_match tokens; the
// positions where a key occurred are chained, latest first, as LZ77 compressors do (RFC 1951,
// section 4). A proposal takes the latest `candidates` positions of the present key, extends each
// match backwards, and merges what followed into one tree. After prompt lookup decoding (Saxena
// 2023) and SuffixDecoding (arXiv 2411.04975). Deterministic; not thread-safe.

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "base/types.h"
#include "speculation/tree.h"

namespace specfabric::speculation {

struct NgramLookupOptions {
  int32_t min_match = 3;    // tokens that must match, at least 1
  int32_t max_match = 16;   // a longer match counts as one of this length
  int32_t candidates = 32;  // earlier positions looked at, latest first
};

class NgramLookup {
 public:
  explicit NgramLookup(const NgramLookupOptions& options = {});

  // Amortised O(1) per token; about 20 bytes per token, and 12 more for each new key.
  void Append(base::TokenId token);
  void Append(absl::Span<const base::TokenId> tokens) {
    for (base::TokenId token : tokens) Append(token);
  }
  // Forgets all but the first `length` tokens, at most size().
  void Truncate(int32_t length);
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  const std::vector<base::TokenId>& tokens() const { return tokens_; }

  // A tree below the last token; the text must not be empty. At most max_nodes nodes (and fewer
  // than kMaxDraftNodes) below the root, and max_depth levels. Only the root if the end of the text
  // did not occur before. A continuation that reaches the end of the text continues with the
  // proposed tokens themselves, so a repetition is proposed to go on.
  //
  // A match of m tokens has the weight 2^(m - min_match), and each node below the root makes it one
  // token longer. The score of a node is the log of
  //     weight of the matches through it / (1 + weight of the matches through its parent),
  // where the 1 stands for tokens that never followed. Grows best-first by the product of these
  // along the path. Siblings are ordered by descending weight, equal ones latest first.
  TokenTree Propose(int32_t max_nodes, int32_t max_depth) const;

 private:
  struct Match {
    int32_t next = 0;  // position of the token that followed
    double weight = 0;
  };
  class Grower;

  uint64_t Key(int32_t end) const;  // of the min_match tokens before `end`
  bool SameKey(int32_t a, int32_t b) const;
  std::vector<Match> Matches() const;  // latest first

  NgramLookupOptions options_;
  std::vector<base::TokenId> tokens_;
  // [tokens]: where the key that ends at this token ended before, or -1.
  std::vector<int32_t> previous_;
  absl::flat_hash_map<uint64_t, int32_t> latest_;  // by key: where it ended last
};

}  // namespace specfabric::speculation

#endif  // SPECFABRIC_SPECULATION_NGRAM_LOOKUP_H_
