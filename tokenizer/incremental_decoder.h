#ifndef SPECFABRIC_TOKENIZER_INCREMENTAL_DECODER_H_
#define SPECFABRIC_TOKENIZER_INCREMENTAL_DECODER_H_

// The text of a growing sequence of ids, piece by piece: what a streaming response sends.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/types.h"
#include "tokenizer/tokenizer.h"

namespace specfabric::tokenizer {

// The concatenation of everything that Append and Finish return is Tokenizer::Decode of all ids.
//
// A piece of text is returned as soon as no later id can change it, so a piece is valid UTF-8 and
// never ends within a character. What is held back: with byte-level tokens an unfinished character,
// with byte fallback a run of byte tokens until its end (one bad byte turns the whole run into
// U+FFFD), with decoders of DecoderKind::kWhole everything.
//
// The text of new ids is found by decoding them behind the ids of the piece before, which hides
// what decoders do to a first token, and subtracting that piece. Each id is decoded a fixed number
// of times, so the cost of a sequence grows linearly with its length.
//
// One thread at a time. A copy continues independently. `tokenizer` must outlive it.
class IncrementalDecoder {
 public:
  IncrementalDecoder(const Tokenizer* tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  // InvalidArgument for a negative id; the ids of the call are then not taken.
  absl::StatusOr<std::string> Append(absl::Span<const base::TokenId> ids);
  absl::StatusOr<std::string> Append(base::TokenId id) { return Append({&id, 1}); }

  // The text still held back, and back to the state of a new decoder.
  absl::StatusOr<std::string> Finish();

 private:
  void Push(base::TokenId id);
  bool Settled() const;
  absl::StatusOr<std::string> Flush();

  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::vector<base::TokenId> ids_;  // the ids before pending_ that decide about a first token, then
  size_t pending_ = 0;              // those whose text was not returned, from this index on
  std::string context_text_;        // Decode(ids_[0, pending_))
  std::string character_;           // byte level: the unfinished character at the end, 0 to 3 bytes
};

}  // namespace specfabric::tokenizer

#endif  // SPECFABRIC_TOKENIZER_INCREMENTAL_DECODER_H_
