#include "scheduler/policy/request_check.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace specfabric::scheduler {
namespace {

absl::Status CheckTokens(const std::vector<base::TokenId>& tokens, int32_t vocabulary) {
  for (base::TokenId token : tokens) {
    if (token < 0 || token >= vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", token, ": allowed are 0 to ", vocabulary - 1));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRequest(const SequenceRequest& request, const SchedulerOptions& options) {
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t generated = static_cast<int64_t>(request.generated.size());
  if (prompt == 0) return absl::InvalidArgumentError("the prompt is empty");
  if (request.max_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens is ", request.max_tokens, ": must not be negative"));
  }
  if (request.priority < -kMaxPriority || request.priority > kMaxPriority) {
    return absl::InvalidArgumentError(absl::StrCat("priority ", request.priority, ": allowed are ",
                                                   -kMaxPriority, " to ", kMaxPriority));
  }
  const int64_t room = options.max_context - (request.max_tokens > 0 ? 1 : 0);
  if (prompt + generated > room) {
    return absl::InvalidArgumentError(absl::StrCat("prompt and output have ", prompt + generated,
                                                   " tokens: this model takes at most ", room));
  }
  if (generated > 0 && generated >= request.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(generated, " tokens are generated already of ",
                                                   request.max_tokens, ": nothing is left to do"));
  }
  if (absl::Status status = CheckTokens(request.prompt, options.vocabulary); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckTokens(request.generated, options.vocabulary); !status.ok()) {
    return status;
  }
  std::vector<base::TokenId> ruled = request.rules.suppressed_token_ids;
  for (const base::LogitBias& bias : request.rules.bias) ruled.push_back(bias.token);
  return CheckTokens(ruled, options.vocabulary);
}

}  // namespace specfabric::scheduler
