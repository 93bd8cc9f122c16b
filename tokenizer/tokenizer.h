#ifndef SPECFABRIC_TOKENIZER_TOKENIZER_H_
#define SPECFABRIC_TOKENIZER_TOKENIZER_H_

// Converts text to token ids and back, and conversations to prompts, with the same results as the
// Hugging Face libraries. Implemented by the Rust crates behind tokenizer/c_api.h.

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

// How much of the text is final after a prefix of the ids was decoded (IncrementalDecoder).
enum class DecoderKind {
  kPerToken,      // each token adds its own text, but the first or last may lack a space
  kByteLevel,     // each token adds bytes, read as UTF-8
  kByteFallback,  // kPerToken, except that runs of "<0xNN>" tokens are read as UTF-8 run by run
  kWhole,         // nothing is final before the end
};

// One checkpoint's tokenizer. Immutable after Load, so every method may be called from any thread.
//
// Errors: InvalidArgument means invalid input (for Load, a malformed checkpoint), with a message
// that can be sent to a client; Internal means a fault in the Rust libraries.
class Tokenizer {
 public:
  // Reads tokenizer.json, which is required (NotFound), and, if the folder has them,
  // tokenizer_config.json, special_tokens_map.json, chat_template.jinja, generation_config.json and
  // config.json. Ignores truncation and padding settings of tokenizer.json.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& model_dir);

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  ~Tokenizer();

  // The ids of `utf8`; special tokens in the text are recognised. `add_special_tokens` adds the
  // tokens that the checkpoint puts around plain text (often a beginning-of-sequence token); a
  // rendered chat template already has them. InvalidArgument names the first byte that is not
  // UTF-8.
  absl::StatusOr<std::vector<base::TokenId>> Encode(std::string_view utf8,
                                                    bool add_special_tokens) const;

  // The text of `ids`, always valid UTF-8: bytes that form no character become U+FFFD. Ids outside
  // the vocabulary (models often pad theirs) have no text. InvalidArgument for negative ids.
  absl::StatusOr<std::string> Decode(absl::Span<const base::TokenId> ids,
                                     bool skip_special_tokens) const;

  // The bytes that `id` adds to a text when it is not the first token; they may be part of a
  // character. Empty for ids outside the vocabulary.
  std::string TokenBytes(base::TokenId id) const;

  // The rendered prompt, to be encoded without special tokens. Templates may print JSON objects
  // with their members in order, so callers must keep the client's order.
  //   messages_json  array of {"role": ..., "content": ...} and other members the template reads
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
  // The text of the template that conversations with tools are rendered by; empty if there is none.
  std::string ToolTemplate() const;

  // One more than the highest id; the model's vocabulary may be padded beyond it.
  int32_t vocab_size() const;
  // All ids that end a text, ascending: those of generation_config.json (or else config.json) and
  // the tokenizer's eos_token.
  const std::vector<base::TokenId>& eos_ids() const { return eos_ids_; }
  std::optional<base::TokenId> bos_id() const;
  bool IsKnown(base::TokenId id) const;    // in the vocabulary
  bool IsSpecial(base::TokenId id) const;  // Decode(..., skip_special_tokens = true) leaves it out
  bool IsByteFallback(base::TokenId id) const;  // a "<0xNN>" token of a kByteFallback decoder
  DecoderKind decoder_kind() const { return decoder_kind_; }
  uint64_t Fingerprint() const { return fingerprint_; }  // see fingerprint.h

 private:
  friend class Grammars;  // tokenizer/grammar.h
  Tokenizer(SfTokenizer* handle, uint64_t fingerprint);

  SfTokenizer* const handle_;  // owned
  const uint64_t fingerprint_;
  const DecoderKind decoder_kind_;
  std::vector<base::TokenId> eos_ids_;
};

}  // namespace specfabric::tokenizer

#endif  // SPECFABRIC_TOKENIZER_TOKENIZER_H_
