#ifndef SPECFABRIC_GATEWAY_REQUEST_REPLAY_H_
#define SPECFABRIC_GATEWAY_REQUEST_REPLAY_H_

// What the gateway remembers of one choice, so that a target's death costs its client nothing: the
// prompt, every token emitted so far, and which attempt is running. Messages may come late, twice
// or out of order; what comes out is every token once, in order. Pure.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "schemas/messages.h"

namespace specfabric::gateway {

// Totals of a sequence over all its attempts.
struct Speculation {
  int64_t rounds = 0, drafted = 0, accepted = 0;
  std::vector<int64_t> accepted_at = {};  // rounds that accepted a guess at depth 1, 2, ...
  // That the guesses were verified by; of several the one that promises least.
  schemas::VerificationMethod verification = schemas::VerificationMethod::kCoupled;

  void Add(const Speculation& other);
};

// What one message made known, in order.
struct Progress {
  bool has_prompt_logprobs = false;  // then prompt_logprobs are those of tokens 1.. of the prompt
  std::vector<base::TokenLogprobs> prompt_logprobs;
  std::vector<base::TokenId> tokens;
  std::vector<base::TokenLogprobs> logprobs;  // [tokens] if asked for
  schemas::Finish finish = schemas::Finish::kNone;
  std::string error;  // one line, with a finish that is an error
};

class RequestReplay {
 public:
  // `submit`: the first attempt, nothing generated.
  explicit RequestReplay(schemas::Submit submit);

  // What to send a target now.
  const schemas::Submit& submit() const { return submit_; }
  // The same at the end of the request, for whoever frees it.
  schemas::Submit TakeSubmit() && { return std::move(submit_); }

  // Applies a message of this request. Nothing if it is of another attempt, or of this one after
  // its end.
  std::optional<Progress> Apply(schemas::Tokens message);

  // The running attempt is lost: submit() becomes the next one, which continues after the tokens
  // emitted. If those are all there can be, only the end was lost: returns it instead.
  std::optional<schemas::Finish> NextAttempt();

  const std::vector<base::TokenId>& emitted() const { return emitted_; }
  Speculation speculation() const;
  // Of the prompt, by the target that began it.
  int32_t cached_tokens() const { return cached_tokens_; }

 private:
  bool Ready(const schemas::Tokens& message) const;
  void Take(schemas::Tokens& message, Progress& progress);

  schemas::Submit submit_;
  std::vector<base::TokenId> emitted_;
  std::multimap<int32_t, schemas::Tokens> early_;  // by first_index: came before their turn
  bool scored_ = false;                            // the prompt's log-probabilities have come
  bool finished_ = false;
  Speculation past_, current_;
  int32_t cached_tokens_ = 0;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_REQUEST_REPLAY_H_
