#ifndef SPECFABRIC_GATEWAY_GRAMMAR_CHECKER_H_
#define SPECFABRIC_GATEWAY_GRAMMAR_CHECKER_H_

// Whether a request's grammar is one, so that a client is told before a target has the request. The
// first call prepares the vocabulary, in some tenths of a second.

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "gateway/api_error.h"
#include "gateway/openai_parse.h"
#include "tokenizer/grammar.h"
#include "tokenizer/tokenizer.h"

namespace specfabric::gateway {

class GrammarChecker {
 public:
  explicit GrammarChecker(std::shared_ptr<const tokenizer::Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)) {}

  // From any thread. Nothing: the request has no grammar, or a good one.
  std::optional<ApiError> Check(const GenerationRequest& request);

 private:
  const std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  std::once_flag once_;
  absl::StatusOr<std::unique_ptr<tokenizer::Grammars>> grammars_ = absl::UnknownError("not made");
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_GRAMMAR_CHECKER_H_
