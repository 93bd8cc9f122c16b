#ifndef SPECFABRIC_SAMPLING_LOGIT_CHANGER_H_
#define SPECFABRIC_SAMPLING_LOGIT_CHANGER_H_

// Applies a request's LogitRules to rows of logits along the branches of a tree: the text before a
// node is what is committed and the node's own path, so each node has counts of its own.

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
#include "base/logit_rules.h"

namespace specfabric::sampling {

// A token of the text so far, and how often it is in the output; 0 if only the prompt has it.
struct TokenCount {
  base::TokenId token = base::kNoToken;
  int32_t output = 0;
  bool operator==(const TokenCount&) const = default;
};

// Every different token of a growing text, in order of appearance.
class TokenCounts {
 public:
  void AddPrompt(base::TokenId token) { At(token); }
  void AddOutput(base::TokenId token) { ++At(token).output; }
  const std::vector<TokenCount>& list() const { return list_; }

 private:
  TokenCount& At(base::TokenId token);

  std::vector<TokenCount> list_;
  std::unordered_map<base::TokenId, int32_t> index_;
};

// Changes rows of one sequence at a time, in float32: logits that are finite stay so, and others
// stay as they are. Scratch memory: one integer for each id of the vocabulary, from the first use
// on. Single-threaded.
class LogitChanger {
 public:
  explicit LogitChanger(int32_t vocabulary) : vocabulary_(vocabulary) {}

  // The sequence of the rows to come. `rules` must live until the next Open; its ids, and those of
  // `committed`, are below the vocabulary. committed: counts of the whole committed text (only of
  // its output where rules do not count the prompt; unused where they do not penalise).
  void Open(const base::LogitRules& rules, absl::Span<const TokenCount> committed);

  // The changed row, [vocabulary], valid until the next call. path: tokens after the committed text
  // up to the row's own. output_size: tokens of the output before the one that the row is about.
  // mask: bit id % 32 of word id / 32 tells whether the grammar allows the token; one bit is set.
  // Empty: all are allowed.
  absl::Span<const float> Change(absl::Span<const float> row, absl::Span<const base::TokenId> path,
                                 int32_t output_size, absl::Span<const uint32_t> mask = {});

 private:
  void Count(base::TokenId token, int32_t occurrences);
  void Penalise(absl::Span<const base::TokenId> path);
  void Exclude(base::TokenId token);

  const int32_t vocabulary_;
  const base::LogitRules* rules_ = nullptr;
  // counts_[id]: 1 + occurrences in the output if the text has the id, else 0.
  std::vector<int32_t> counts_;
  std::vector<base::TokenId> seen_;  // ids whose count is not 0
  std::vector<float> changed_;
};

// The same rules word for word, in double precision, from the text itself: the oracle of the tests.
// `output` holds the committed output and the path. allowed: [row], or empty: all are.
std::vector<double> ChangedLogitsReference(absl::Span<const float> row,
                                           const base::LogitRules& rules,
                                           absl::Span<const base::TokenId> prompt,
                                           absl::Span<const base::TokenId> output,
                                           const std::vector<bool>& allowed = {});

}  // namespace specfabric::sampling

#endif  // SPECFABRIC_SAMPLING_LOGIT_CHANGER_H_
