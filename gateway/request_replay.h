#ifndef SPECFABRIC_GATEWAY_REQUEST_REPLAY_H_
#define SPECFABRIC_GATEWAY_REQUEST_REPLAY_H_

// Request replay state of one choice, from which it continues on another target when its target is
// lost: the prompt, every token emitted so far, and the number of the running attempt. Messages may
// arrive late, twice or out of order; each token is returned once, in order. Pure.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "schemas/messages.h"

namespace specfabric::gateway {

class RequestReplay {
 public:
  // `submit`: the first attempt, with nothing generated.
  explicit RequestReplay(schemas::Submit submit);

  // What to send to a target for the current attempt.
  const schemas::Submit& submit() const { return submit_; }
  // The same, moved out at the end of the request.
  schemas::Submit TakeSubmit() && { return std::move(submit_); }

  // Applies a message of this request. Returns it without the tokens that are known already and
  // with those that had to wait for it; one without tokens or end if it has to wait itself. Nothing
  // if it is of another attempt, or of this one after its end.
  std::optional<schemas::Tokens> Apply(schemas::Tokens message);

  // The running attempt is lost: submit() becomes the next one, which continues after the emitted
  // tokens. If the output was complete and only its end was lost, returns that end instead.
  std::optional<schemas::Finish> NextAttempt();

  const std::vector<base::TokenId>& emitted() const { return emitted_; }
  schemas::Speculation speculation() const;  // of all attempts
  // Tokens of the prompt that the first attempt's target had in its prefix cache.
  int32_t cached_tokens() const { return cached_tokens_; }

 private:
  void CountRounds(const schemas::Tokens& message);
  bool Ready(const schemas::Tokens& message) const;
  void Emit(schemas::Tokens& message);

  schemas::Submit submit_;
  std::vector<base::TokenId> emitted_;
  std::multimap<int32_t, schemas::Tokens> early_;  // by first_index: wait for earlier tokens
  bool scored_ = false;  // the prompt's log-probabilities were received, or are not requested
  bool finished_ = false;
  schemas::Speculation past_, current_;  // of earlier attempts, of this one
  int32_t cached_tokens_ = 0;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_REQUEST_REPLAY_H_
