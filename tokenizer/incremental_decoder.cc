#include "tokenizer/incremental_decoder.h"

#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace specfabric::tokenizer {
namespace {

// The number of bytes of the UTF-8 character that starts with `lead`; 0 if none does.
size_t CharacterSize(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF5 ? 4 : 0;
}

// Whether `second` may follow `lead`: excludes overlong forms, surrogates and code points beyond
// U+10FFFF (Unicode, table 3-7).
bool IsSecondByte(uint8_t lead, uint8_t second) {
  switch (lead) {
    case 0xE0:
      return second >= 0xA0 && second <= 0xBF;
    case 0xED:
      return second >= 0x80 && second <= 0x9F;
    case 0xF0:
      return second >= 0x90 && second <= 0xBF;
    case 0xF4:
      return second >= 0x80 && second <= 0x8F;
    default:
      return second >= 0x80 && second <= 0xBF;
  }
}

// The incomplete character at the end of `bytes`; empty if there is none.
std::string_view UnfinishedCharacter(std::string_view bytes) {
  size_t length = 1;
  while (length <= 3 && length <= bytes.size()) {
    const std::string_view end = bytes.substr(bytes.size() - length);
    const auto lead = static_cast<uint8_t>(end[0]);
    const bool continues = lead >= 0x80 && lead < 0xC0;
    if (!continues) {
      if (CharacterSize(lead) <= length) return {};
      const bool second_fits = length < 2 || IsSecondByte(lead, static_cast<uint8_t>(end[1]));
      return second_fits ? end : std::string_view();
    }
    ++length;
  }
  return {};
}

}  // namespace

absl::StatusOr<std::string> IncrementalDecoder::Append(absl::Span<const base::TokenId> ids) {
  for (base::TokenId id : ids) {
    if (id < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", id, " is negative; ids start at 0"));
    }
  }
  std::string text;
  for (base::TokenId id : ids) {
    Push(id);
    if (pending_ == ids_.size() || !Settled()) continue;
    absl::StatusOr<std::string> piece = Flush();
    if (!piece.ok()) return piece.status();
    text += *piece;
  }
  return text;
}

absl::StatusOr<std::string> IncrementalDecoder::Finish() {
  absl::StatusOr<std::string> rest = std::string();
  if (pending_ < ids_.size()) rest = Flush();
  ids_.clear();
  pending_ = 0;
  context_text_.clear();
  character_.clear();
  return rest;
}

void IncrementalDecoder::Push(base::TokenId id) {
  // Ids without text must not become the context: the next id would be decoded as a first token.
  if (!tokenizer_->IsKnown(id)) return;
  if (skip_special_tokens_ && tokenizer_->IsSpecial(id)) return;
  ids_.push_back(id);
  if (tokenizer_->decoder_kind() == DecoderKind::kByteLevel) {
    character_ += tokenizer_->TokenBytes(id);
    character_ = std::string(UnfinishedCharacter(character_));
  }
}

// Whether the text of ids_ stays the same whatever ids follow.
bool IncrementalDecoder::Settled() const {
  switch (tokenizer_->decoder_kind()) {
    case DecoderKind::kPerToken:
      return true;
    case DecoderKind::kByteLevel:
      return character_.empty();
    case DecoderKind::kByteFallback:
      return !tokenizer_->IsByteFallback(ids_.back());
    case DecoderKind::kWhole:
      return false;
  }
  return false;
}

// Returns the text of the pending ids and makes them the context of the next ones.
absl::StatusOr<std::string> IncrementalDecoder::Flush() {
  absl::StatusOr<std::string> text = tokenizer_->Decode(ids_, skip_special_tokens_);
  if (!text.ok()) return text.status();
  if (!absl::StartsWith(*text, context_text_)) {
    return absl::InternalError("the tokenizer's decoder changed text that was settled");
  }
  std::string piece = text->substr(context_text_.size());

  const absl::Span<const base::TokenId> latest = absl::MakeConstSpan(ids_).subspan(pending_);
  absl::StatusOr<std::string> latest_text = tokenizer_->Decode(latest, skip_special_tokens_);
  if (!latest_text.ok()) return latest_text.status();
  // After ids without text the next id may still be decoded as a first token.
  if (!latest_text->empty()) {
    ids_.erase(ids_.begin(), ids_.begin() + static_cast<ptrdiff_t>(pending_));
    context_text_ = *std::move(latest_text);
  } else {
    context_text_ = *std::move(text);
  }
  pending_ = ids_.size();
  return piece;
}

}  // namespace specfabric::tokenizer
