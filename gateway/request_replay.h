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

class RequestReplay {
 public:
  // `submit`: the first attempt, nothing generated.
  explicit RequestReplay(schemas::Submit submit);

  // What to send a target now.
  const schemas::Submit& submit() const { return submit_; }
  // The same at the end of the request, for whoever frees it.
  schemas::Submit TakeSubmit() && { return std::move(submit_); }

  // Applies a message of this request. Returns it without the tokens that are known already and
  // with those that had to wait for it; one without tokens or end if it has to wait itself. Nothing
  // if it is of another attempt, or of this one after its end.
  std::optional<schemas::Tokens> Apply(schemas::Tokens message);

  // The running attempt is lost: submit() becomes the next one, which continues after the tokens
  // emitted. If those are all there can be, only the end was lost: returns it instead.
  std::optional<schemas::Finish> NextAttempt();

  const std::vector<base::TokenId>& emitted() const { return emitted_; }
  schemas::Speculation speculation() const;  // of all attempts
  // Of the prompt, by the target that began it.
  int32_t cached_tokens() const { return cached_tokens_; }

 private:
  void CountRounds(const schemas::Tokens& message);
  bool Ready(const schemas::Tokens& message) const;
  void Emit(schemas::Tokens& message);

  schemas::Submit submit_;
  std::vector<base::TokenId> emitted_;
  std::multimap<int32_t, schemas::Tokens> early_;  // by first_index: came before their turn
  bool scored_ = false;                            // the prompt's log-probabilities have come
  bool finished_ = false;
  schemas::Speculation past_, current_;  // of earlier attempts, of this one
  int32_t cached_tokens_ = 0;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_REQUEST_REPLAY_H_
