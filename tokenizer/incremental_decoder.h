#ifndef SPECFABRIC_TOKENIZER_INCREMENTAL_DECODER_H_
#define SPECFABRIC_TOKENIZER_INCREMENTAL_DECODER_H_

// Decodes a growing sequence of ids piece by piece, for streamed responses.

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
// never ends within a character. Held back are: with byte-level tokens an incomplete character,
// with byte fallback a run of byte tokens until its end (one invalid byte turns the whole run into
// U+FFFD), with decoders of DecoderKind::kWhole everything.
//
// The text of new ids is found by decoding them after the ids of the previous piece, because
// decoders treat a first token differently, and removing that piece. Each id is decoded a fixed
// number of times, so the time for a sequence is linear in its length.
//
// One thread at a time. A copy continues independently. `tokenizer` must outlive it.
class IncrementalDecoder {
 public:
  IncrementalDecoder(const Tokenizer* tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  // InvalidArgument for a negative id; none of the ids of that call is added.
  absl::StatusOr<std::string> Append(absl::Span<const base::TokenId> ids);
  absl::StatusOr<std::string> Append(base::TokenId id) { return Append({&id, 1}); }

  // Returns the text that was held back and resets the decoder.
  absl::StatusOr<std::string> Finish();

 private:
  void Push(base::TokenId id);
  bool Settled() const;
  absl::StatusOr<std::string> Flush();

  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  // The ids of the previous piece, then, from index pending_, those whose text was not returned.
  std::vector<base::TokenId> ids_;
  size_t pending_ = 0;
  std::string context_text_;  // Decode(ids_[0, pending_))
  std::string character_;     // byte level: the incomplete character at the end, 0 to 3 bytes
};

}  // namespace specfabric::tokenizer

#endif  // SPECFABRIC_TOKENIZER_INCREMENTAL_DECODER_H_
