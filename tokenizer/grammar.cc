#include "tokenizer/grammar.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tokenizer/c_api.h"
#include "tokenizer/c_results.h"

namespace specfabric::tokenizer {
void GrammarMatcher::Destroy::operator()(SfMatcher* handle) const { sf_matcher_destroy(handle); }
void Grammars::Destroy::operator()(SfGrammars* handle) const { sf_grammars_destroy(handle); }

GrammarMatcher GrammarMatcher::Clone() const {
  SfMatcher* const clone = sf_matcher_clone(handle_.get());
  SPECFABRIC_CHECK(clone != nullptr);
  return GrammarMatcher(clone);
}

absl::Status GrammarMatcher::Consume(absl::Span<const base::TokenId> tokens) {
  SfBytes message;
  const int32_t code = sf_matcher_consume(handle_.get(), tokens.data(), tokens.size(), &message);
  return TakeStatus(code, message);
}

absl::Status GrammarMatcher::Rollback(int count) {
  SfBytes message;
  const int32_t code = sf_matcher_rollback(handle_.get(), static_cast<size_t>(count), &message);
  return TakeStatus(code, message);
}

int GrammarMatcher::Allowed(absl::Span<const base::TokenId> tokens) {
  return static_cast<int>(sf_matcher_allowed(handle_.get(), tokens.data(), tokens.size()));
}

absl::Status GrammarMatcher::Mask(absl::Span<uint32_t> words) {
  SfBytes message;
  const int32_t code = sf_matcher_mask(handle_.get(), words.data(), words.size(), &message);
  return TakeStatus(code, message);
}

std::vector<base::TokenId> GrammarMatcher::Forced() {
  SfIds ids;
  sf_matcher_forced(handle_.get(), &ids);
  return TakeIds(ids);
}

bool GrammarMatcher::Accepts() { return sf_matcher_accepts(handle_.get()); }
bool GrammarMatcher::stopped() const { return sf_matcher_stopped(handle_.get()); }

absl::StatusOr<std::unique_ptr<Grammars>> Grammars::Create(const Tokenizer& tokenizer) {
  SfGrammars* handle = nullptr;
  SfBytes message;
  const int32_t code = sf_grammars_create(tokenizer.handle_, &handle, &message);
  if (absl::Status status = TakeStatus(code, message); !status.ok()) return status;
  return std::unique_ptr<Grammars>(new Grammars(handle));
}

absl::StatusOr<GrammarMatcher> Grammars::Compile(const base::Grammar& grammar) const {
  if (grammar.source.size() > base::kMaxGrammarBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has ", grammar.source.size(), " bytes; at most ", base::kMaxGrammarBytes, " are allowed"));
  }
  SfMatcher* handle = nullptr;
  SfBytes message;
  const int32_t code =
      sf_grammars_compile(handle_.get(), static_cast<int32_t>(grammar.language),
                          grammar.source.data(), grammar.source.size(), &handle, &message);
  if (absl::Status status = TakeStatus(code, message); !status.ok()) return status;
  return GrammarMatcher(handle);
}

}  // namespace specfabric::tokenizer
