#ifndef SPECFABRIC_TOKENIZER_TOKENIZER_H_
#define SPECFABRIC_TOKENIZER_TOKENIZER_H_

// Text to token ids and back, and conversations to prompts, as the Hugging Face libraries do it for
// the same checkpoint. The work is done by the Rust crates behind tokenizer/c_api.h.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/types.h"

struct SfTokenizer;  // tokenizer/c_api.h

namespace specfabric::tokenizer {

// How much of a text is settled once a prefix of its ids is known (IncrementalDecoder).
enum class DecoderKind {
  kPerToken,      // each token adds its own text, but the first or last may lack a space
  kByteLevel,     // each token adds bytes, read as UTF-8
  kByteFallback,  // kPerToken, except that runs of "<0xNN>" tokens are read as UTF-8 run by run
  kWhole,         // nothing is settled before the end
};

// One checkpoint's tokenizer. Immutable after Load, so every method may be called from any thread.
//
// Errors: InvalidArgument means bad input (or a malformed checkpoint, for Load) and its message is
// fit for a client; Internal means a fault in the libraries below.
class Tokenizer {
 public:
  // Reads tokenizer.json, which must be there (NotFound), and what the folder holds of
  // tokenizer_config.json, special_tokens_map.json, chat_template.jinja, generation_config.json and
  // config.json. Truncation and padding saved in tokenizer.json are switched off.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& model_dir);

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  ~Tokenizer();

  // The ids of `utf8`; special tokens spelled out in it are recognised. `add_special_tokens` adds
  // what the checkpoint puts around a plain text (often a beginning-of-sequence token); a rendered
  // chat template holds its own already. InvalidArgument names the first byte that is not UTF-8.
  absl::StatusOr<std::vector<base::TokenId>> Encode(std::string_view utf8,
                                                    bool add_special_tokens) const;

  // The text of `ids`, always valid UTF-8: bytes that form no character become U+FFFD. Ids outside
  // the vocabulary (models often pad theirs) have no text. InvalidArgument for negative ids.
  absl::StatusOr<std::string> Decode(absl::Span<const base::TokenId> ids,
                                     bool skip_special_tokens) const;

  // The bytes that `id` adds to a text when it is not the first token; they may be part of a
  // character. Empty for ids outside the vocabulary.
  std::string TokenBytes(base::TokenId id) const;

  // A rendered prompt, to be encoded without special tokens. The order of the members of JSON
  // objects shows in it where the template prints them, so callers must keep the client's.
  //   messages_json  array of {"role": ..., "content": ...} and what else the template reads
  //   tools_json     array of tool definitions, or empty
  //   variables_json object of further template variables such as {"enable_thinking": false}, or
  //                  empty
  // InvalidArgument if the checkpoint has no template or the template raises an exception;
  // FailedPrecondition if the template does not compile.
  absl::StatusOr<std::string> ApplyChatTemplate(std::string_view messages_json,
                                                bool add_generation_prompt,
                                                std::string_view tools_json = {},
                                                std::string_view variables_json = {}) const;
  bool has_chat_template() const;

  // One more than the highest id; the model's own vocabulary may be padded beyond it.
  int32_t vocab_size() const;
  // Every id that ends a text, ascending: those of generation_config.json (else config.json) and
  // the tokenizer's own eos_token.
  const std::vector<base::TokenId>& eos_ids() const { return eos_ids_; }
  std::optional<base::TokenId> bos_id() const;
  bool IsKnown(base::TokenId id) const;    // the vocabulary has it
  bool IsSpecial(base::TokenId id) const;  // Decode(..., skip_special_tokens = true) leaves it out
  bool IsByteFallback(base::TokenId id) const;  // a "<0xNN>" token of a kByteFallback decoder
  DecoderKind decoder_kind() const { return decoder_kind_; }
  uint64_t Fingerprint() const { return fingerprint_; }  // see fingerprint.h

 private:
  Tokenizer(SfTokenizer* handle, uint64_t fingerprint);

  SfTokenizer* const handle_;  // owned
  const uint64_t fingerprint_;
  const DecoderKind decoder_kind_;
  std::vector<base::TokenId> eos_ids_;
};

}  // namespace specfabric::tokenizer

#endif  // SPECFABRIC_TOKENIZER_TOKENIZER_H_
