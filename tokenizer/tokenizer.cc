#include "tokenizer/tokenizer.h"

#include <utility>

#include "absl/status/status.h"
#include "tokenizer/c_api.h"
#include "tokenizer/c_results.h"
#include "tokenizer/fingerprint.h"

namespace specfabric::tokenizer {
namespace {

DecoderKind KindOf(int32_t kind) {
  switch (kind) {
    case kSfDecoderPerToken:
      return DecoderKind::kPerToken;
    case kSfDecoderByteLevel:
      return DecoderKind::kByteLevel;
    case kSfDecoderByteFallback:
      return DecoderKind::kByteFallback;
    default:
      return DecoderKind::kWhole;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& model_dir) {
  SfTokenizer* handle = nullptr;
  SfBytes message;
  const int32_t code = sf_tokenizer_load(model_dir.data(), model_dir.size(), &handle, &message);
  absl::Status status = TakeStatus(code, message);
  if (!status.ok()) return status;
  absl::StatusOr<uint64_t> fingerprint = FingerprintOf(model_dir);
  if (!fingerprint.ok()) {
    sf_tokenizer_destroy(handle);
    return fingerprint.status();
  }
  return std::unique_ptr<Tokenizer>(new Tokenizer(handle, *fingerprint));
}

Tokenizer::Tokenizer(SfTokenizer* handle, uint64_t fingerprint)
    : handle_(handle),
      fingerprint_(fingerprint),
      decoder_kind_(KindOf(sf_tokenizer_decoder_kind(handle))) {
  SfIds ids;
  sf_tokenizer_eos_ids(handle_, &ids);
  eos_ids_ = TakeIds(ids);
}

Tokenizer::~Tokenizer() { sf_tokenizer_destroy(handle_); }

absl::StatusOr<std::vector<base::TokenId>> Tokenizer::Encode(std::string_view utf8,
                                                             bool add_special_tokens) const {
  SfIds ids;
  SfBytes message;
  const int32_t code =
      sf_tokenizer_encode(handle_, utf8.data(), utf8.size(), add_special_tokens, &ids, &message);
  std::vector<base::TokenId> encoded = TakeIds(ids);
  absl::Status status = TakeStatus(code, message);
  if (!status.ok()) return status;
  return encoded;
}

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const base::TokenId> ids,
                                              bool skip_special_tokens) const {
  SfBytes text;
  const int32_t code =
      sf_tokenizer_decode(handle_, ids.data(), ids.size(), skip_special_tokens, &text);
  return TakeResult(code, text);
}

std::string Tokenizer::TokenBytes(base::TokenId id) const {
  SfBytes bytes;
  const int32_t code = sf_tokenizer_token_bytes(handle_, id, &bytes);
  return TakeResult(code, bytes).value_or(std::string());
}

absl::StatusOr<std::string> Tokenizer::ApplyChatTemplate(std::string_view messages_json,
                                                         bool add_generation_prompt,
                                                         std::string_view tools_json,
                                                         std::string_view variables_json) const {
  SfBytes text;
  const int32_t code = sf_tokenizer_apply_chat_template(
      handle_, messages_json.data(), messages_json.size(), tools_json.data(), tools_json.size(),
      variables_json.data(), variables_json.size(), add_generation_prompt, &text);
  return TakeResult(code, text);
}

bool Tokenizer::has_chat_template() const { return sf_tokenizer_has_chat_template(handle_); }

std::string Tokenizer::ToolTemplate() const {
  SfBytes text;
  sf_tokenizer_tool_template(handle_, &text);
  return TakeBytes(text);
}

int32_t Tokenizer::vocab_size() const { return sf_tokenizer_vocab_size(handle_); }

std::optional<base::TokenId> Tokenizer::bos_id() const {
  const base::TokenId id = sf_tokenizer_bos_id(handle_);
  return id < 0 ? std::nullopt : std::optional<base::TokenId>(id);
}

bool Tokenizer::IsKnown(base::TokenId id) const {
  return (sf_tokenizer_token_flags(handle_, id) & kSfTokenKnown) != 0;
}

bool Tokenizer::IsSpecial(base::TokenId id) const {
  return (sf_tokenizer_token_flags(handle_, id) & kSfTokenSpecial) != 0;
}

bool Tokenizer::IsByteFallback(base::TokenId id) const {
  return (sf_tokenizer_token_flags(handle_, id) & kSfTokenByte) != 0;
}

}  // namespace specfabric::tokenizer
