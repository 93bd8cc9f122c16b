#ifndef SPECFABRIC_GATEWAY_CHOICE_TEXT_H_
#define SPECFABRIC_GATEWAY_CHOICE_TEXT_H_

// Turns the tokens of one choice into text as they arrive: decodes them, cuts the text at stop
// strings, and adds the log-probabilities.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/types.h"
#include "gateway/answer.h"
#include "gateway/stop_matcher.h"
#include "tokenizer/incremental_decoder.h"
#include "tokenizer/tokenizer.h"

namespace specfabric::gateway {

class ChoiceText {
 public:
  struct Options {
    std::shared_ptr<const StopPatterns> stop = nullptr;  // null: none
    std::vector<base::TokenId> stop_ids = {};            // end the output
    bool include_stop = false;  // the text includes the stop string or token that ended the output
    bool skip_special_tokens = true;  // special tokens have no text
    int32_t min_tokens = 0;           // stop strings in the text of the first tokens do not count
    int logprobs = -1;                // candidates of each token; -1: no log-probabilities
    bool with_logprobs() const { return logprobs >= 0; }
  };
  // The output is decoded as the continuation of `prompt`, so that its first word keeps the space
  // before it. `tokenizer` must outlive the object.
  static absl::StatusOr<ChoiceText> Create(const tokenizer::Tokenizer* tokenizer,
                                           absl::Span<const base::TokenId> prompt, Options options);

  // The prompt as the first piece. `text`: as the client sent it, or null to decode it. `logprobs`:
  // of tokens 1.. of the prompt, if requested. Call before any Append.
  absl::StatusOr<TextPiece> Echo(absl::Span<const base::TokenId> prompt, const std::string* text,
                                 absl::Span<const base::TokenLogprobs> logprobs);
  // The log-probabilities of the prompt as they were given, with up to `candidates` each.
  std::vector<TokenEntry> PromptEntries(absl::Span<const base::TokenId> prompt,
                                        absl::Span<const base::TokenLogprobs> logprobs,
                                        int candidates) const;
  // The text of output tokens, up to the one that completed a stop. logprobs: [tokens] with
  // Options::logprobs.
  absl::StatusOr<TextPiece> Append(absl::Span<const base::TokenId> tokens,
                                   absl::Span<const base::TokenLogprobs> logprobs);
  // At the end of the output: the text that was held back.
  absl::StatusOr<std::string> Finish();

  // A stop string was found: the output has ended, and later tokens are ignored.
  bool stopped() const { return stops_.matched(); }
  const std::string& stop() const { return stops_.match(); }  // that stop string

 private:
  ChoiceText(const tokenizer::Tokenizer* tokenizer, Options options);
  absl::Status Prime(absl::Span<const base::TokenId> prompt);
  std::string WithoutPrompt(std::string piece);
  std::string CutAtStop(const std::string& text);
  TokenEntry Entry(const base::TokenLogprobs& logprobs, int candidates) const;

  const tokenizer::Tokenizer* tokenizer_;
  Options options_;
  tokenizer::IncrementalDecoder decoder_;
  StopMatcher stops_;
  std::string prompt_rest_;  // text at the prompt's end that the decoder holds back
  int64_t tokens_ = 0;       // of the output
  int64_t offset_ = 0;       // characters decoded so far, an echoed prompt included
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_CHOICE_TEXT_H_
