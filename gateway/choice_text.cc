#include "gateway/choice_text.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace specfabric::gateway {
namespace {

// The decoder starts this many tokens before the end of the prompt, or further back, up to
// kMaxContextTokens, to find a token that decoding can start from.
constexpr size_t kContextTokens = 4;
constexpr size_t kMaxContextTokens = 64;

std::shared_ptr<const StopPatterns> NoStops() {
  static const auto none = std::make_shared<const StopPatterns>(std::vector<std::string>());
  return none;
}

int64_t Characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

ChoiceText::ChoiceText(const tokenizer::Tokenizer* tokenizer, Options options)
    : tokenizer_(tokenizer),
      options_(std::move(options)),
      decoder_(tokenizer, options_.skip_special_tokens),
      stops_(options_.stop != nullptr ? options_.stop : NoStops(), options_.include_stop) {}

absl::StatusOr<ChoiceText> ChoiceText::Create(const tokenizer::Tokenizer* tokenizer,
                                              absl::Span<const base::TokenId> prompt,
                                              Options options) {
  ChoiceText text(tokenizer, std::move(options));
  if (absl::Status status = text.Prime(prompt); !status.ok()) return status;
  return text;
}

absl::Status ChoiceText::Prime(absl::Span<const base::TokenId> prompt) {
  // A decoder that returns all text at the end cannot tell the prompt from the output.
  if (tokenizer_->decoder_kind() == tokenizer::DecoderKind::kWhole) return absl::OkStatus();
  size_t count = std::min(prompt.size(), kContextTokens);
  // A run of byte tokens is decoded as a whole, and skipped tokens have no text.
  const auto can_start = [&](base::TokenId id) {
    const bool skipped = options_.skip_special_tokens && tokenizer_->IsSpecial(id);
    return !tokenizer_->IsByteFallback(id) && !skipped;
  };
  while (count < std::min(prompt.size(), kMaxContextTokens) &&
         !can_start(prompt[prompt.size() - count])) {
    ++count;
  }
  if (auto piece = decoder_.Append(prompt.last(count)); !piece.ok()) return piece.status();
  tokenizer::IncrementalDecoder copy = decoder_;
  absl::StatusOr<std::string> rest = copy.Finish();
  if (!rest.ok()) return rest.status();
  prompt_rest_ = *std::move(rest);
  return absl::OkStatus();
}

// Removes the text of the prompt's end from the first piece. Where that end was a part of a
// character that the output completed, the piece does not start with it and stays as it is.
std::string ChoiceText::WithoutPrompt(std::string piece) {
  if (piece.empty() || prompt_rest_.empty()) return piece;
  if (piece.starts_with(prompt_rest_)) piece.erase(0, prompt_rest_.size());
  prompt_rest_.clear();
  return piece;
}

std::string ChoiceText::CutAtStop(const std::string& text) {
  return stops_.Push(text, /*may_match=*/tokens_ > options_.min_tokens);
}

TokenEntry ChoiceText::Entry(const base::TokenLogprobs& logprobs, int candidates) const {
  const auto candidate = [&](base::TokenId id, float logprob) {
    return TokenEntry::Candidate{id, tokenizer_->TokenBytes(id), logprob};
  };
  TokenEntry entry;
  entry.token = candidate(logprobs.token, logprobs.logprob);
  for (const auto& [id, logprob] : logprobs.top) {
    if (entry.top.size() == static_cast<size_t>(candidates)) break;
    entry.top.push_back(candidate(id, logprob));
  }
  entry.offset = offset_;
  return entry;
}

absl::StatusOr<TextPiece> ChoiceText::Echo(absl::Span<const base::TokenId> prompt,
                                           const std::string* text,
                                           absl::Span<const base::TokenLogprobs> logprobs) {
  if (options_.with_logprobs() && logprobs.size() + 1 != prompt.size()) {
    return absl::InternalError(absl::StrCat("the target scored ", logprobs.size(), " of ",
                                            prompt.size(),
                                            " prompt tokens, not all but the first"));
  }
  TextPiece piece;
  tokenizer::IncrementalDecoder decoder(tokenizer_, options_.skip_special_tokens);
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (options_.with_logprobs()) {
      base::TokenLogprobs first;
      first.token = prompt[0];
      piece.entries.push_back(Entry(i == 0 ? first : logprobs[i - 1], options_.logprobs));
      piece.entries.back().scored = i > 0;
    }
    absl::StatusOr<std::string> more = decoder.Append(prompt[i]);
    if (!more.ok()) return more.status();
    piece.text += *more;
    offset_ += Characters(*more);
  }
  absl::StatusOr<std::string> rest = decoder.Finish();
  if (!rest.ok()) return rest.status();
  piece.text += *rest;
  offset_ += Characters(*rest);
  if (text != nullptr) {
    offset_ += Characters(*text) - Characters(piece.text);
    piece.text = *text;
  }
  return piece;
}

std::vector<TokenEntry> ChoiceText::PromptEntries(absl::Span<const base::TokenId> prompt,
                                                  absl::Span<const base::TokenLogprobs> logprobs,
                                                  int candidates) const {
  std::vector<TokenEntry> entries(1);
  entries[0].token.id = prompt[0];
  entries[0].scored = false;
  for (const base::TokenLogprobs& token : logprobs) entries.push_back(Entry(token, candidates));
  return entries;
}

absl::StatusOr<TextPiece> ChoiceText::Append(absl::Span<const base::TokenId> tokens,
                                             absl::Span<const base::TokenLogprobs> logprobs) {
  if (options_.with_logprobs() && logprobs.size() != tokens.size()) {
    return absl::InternalError(absl::StrCat("the target sent ", logprobs.size(),
                                            " log-probabilities for ", tokens.size(), " tokens"));
  }
  TextPiece piece;
  for (size_t i = 0; i < tokens.size() && !stopped(); ++i) {
    if (options_.with_logprobs()) piece.entries.push_back(Entry(logprobs[i], options_.logprobs));
    piece.ids.push_back(tokens[i]);
    ++tokens_;
    const bool is_stop = std::find(options_.stop_ids.begin(), options_.stop_ids.end(), tokens[i]) !=
                         options_.stop_ids.end();
    if (is_stop && !options_.include_stop) continue;
    absl::StatusOr<std::string> more = decoder_.Append(tokens[i]);
    if (!more.ok()) return more.status();
    const std::string decoded = WithoutPrompt(*std::move(more));
    offset_ += Characters(decoded);
    piece.text += CutAtStop(decoded);
  }
  return piece;
}

absl::StatusOr<std::string> ChoiceText::Finish() {
  absl::StatusOr<std::string> more = decoder_.Finish();
  if (!more.ok()) return more.status();
  std::string text = CutAtStop(WithoutPrompt(*std::move(more)));
  return text + stops_.Finish();
}

}  // namespace specfabric::gateway
