#include "gateway/grammar_checker.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace specfabric::gateway {

std::optional<ApiError> GrammarChecker::Check(const GenerationRequest& request) {
  if (request.grammar.empty()) return std::nullopt;
  std::call_once(once_, [this] { grammars_ = tokenizer::Grammars::Create(*tokenizer_); });
  absl::Status status = grammars_.status();
  if (status.ok()) status = (*grammars_)->Compile(request.grammar).status();
  if (status.ok()) return std::nullopt;
  std::string message = absl::StrCat("'", request.grammar_field, "': ", base::Message(status));
  if (absl::IsInternal(status)) return ServerError(std::move(message));
  return BadRequest(request.grammar_field, std::move(message));
}

}  // namespace specfabric::gateway
