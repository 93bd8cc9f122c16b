#ifndef SPECFABRIC_GATEWAY_DISPATCHER_H_
#define SPECFABRIC_GATEWAY_DISPATCHER_H_

// Sends choices to targets and returns their tokens. When a target is lost, drains or refuses a
// choice, sends the choice to another one. A state machine without threads, clock or sockets:
// peers, messages and time are arguments. Called on one thread.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "gateway/api_error.h"
#include "gateway/finish_rate.h"
#include "gateway/openai_format.h"
#include "gateway/request_replay.h"
#include "gateway/target_pool.h"
#include "link/link.h"
#include "metrics/gateway_metrics.h"

namespace specfabric::gateway {

// How long a request may take, its wait for a target included.
struct TimeLimit {
  base::Nanos received = 0;
  base::Nanos timeout = 0;  // from then on; 0: as long as it takes
};

struct DispatcherOptions {
  size_t max_choices = 1024;                    // running or waiting; more are refused
  base::Nanos target_wait = 5 * base::kSecond;  // for a target to connect; then the choice fails
  // A target that has work of ours and sends nothing for this long is taken for hung even if its
  // connection is up: its engine sends a heartbeat every second, except during a step. 0: never.
  base::Nanos stall_timeout = 30 * base::kSecond;
  // A choice fails when this many targets were lost while they ran it, so that a request that
  // crashes targets cannot crash all of them.
  uint32_t max_attempts = 8;
};

// Where the dispatcher's messages go; link::Link in a gateway.
struct TargetSender {
  std::function<absl::Status(link::PeerId, const schemas::Submit&)> submit;
  std::function<void(link::PeerId, const schemas::Cancel&)> cancel;
  std::function<void(link::PeerId)> close;  // ends the connection
  // Takes the request of an ended choice where freeing its memory takes long. May be null.
  std::function<void(schemas::Submit)> discard = nullptr;
};

// What the owner of a choice is told: tokens in order, each once. After `failed`, or tokens with
// finish kStop or kLength, nothing more comes and the choice's id is free. May call
// Dispatcher::Cancel of any choice.
struct ChoiceSink {
  std::function<void(schemas::Tokens)> tokens;
  std::function<void(ApiError)> failed;
};

// How the output of one choice was produced.
struct ChoiceRecord {
  schemas::Speculation speculation;
  uint64_t fingerprint = 0;   // numerics of its first target; 0 if unknown
  bool exact = true;          // all its targets had these numerics
  int32_t cached_tokens = 0;  // of its prompt
};
Exactness ExactnessOf(const ChoiceRecord& record);

// Time that the io thread takes to send a choice, in prompt tokens to encode (a message costs about
// as much as a thousand), and the limit of one turn: about 100 us.
constexpr size_t kSubmitsATurn = 64 << 10;
inline size_t SubmitCost(const schemas::Submit& submit) {
  const schemas::SequenceRequest& sequence = submit.sequence;
  return sequence.prompt.size() + sequence.generated.size() +
         sequence.grammar.source.size() / sizeof(base::TokenId) + 1000;
}

class Dispatcher {
 public:
  Dispatcher(DispatcherOptions options, TargetSender sender, metrics::GatewayMetrics* metrics);

  bool HasRoom(size_t choices) const { return choices_.size() + choices <= options_.max_choices; }
  // Sets the request id and attempt of `submit`. Returns the id. Does not call `sink` itself.
  uint64_t Start(schemas::Submit submit, ChoiceSink sink, base::Nanos now, TimeLimit limit = {});
  // Ends a choice and tells its target. Unknown ids are ignored.
  void Cancel(uint64_t id);
  // Seconds until the present choices will have finished, at the recent rate: for Retry-After.
  int RetryAfter(base::Nanos now) const { return rate_.SecondsUntilDone(choices_.size(), now); }
  // Whether the live choice is at a target, and does not wait for one.
  bool Placed(uint64_t id) const;
  // Of a live choice, or of one whose sink is being called with its end.
  ChoiceRecord Record(uint64_t id) const;

  void OnUp(link::PeerId peer, const schemas::Hello& hello, base::Nanos now);
  void OnDown(link::PeerId peer, base::Nanos now);
  void OnDrain(link::PeerId peer);
  void OnBatch(link::PeerId peer, schemas::TokensBatch batch, base::Nanos now);
  // Choices wait for a target that is available, but this turn has sent its limit: call
  // PlaceWaiting in a later turn of the io thread. Any method may set it.
  bool backlog() const { return backlog_; }
  void PlaceWaiting(base::Nanos now);
  // Sends waiting choices to targets, fails those that have waited or taken too long, and drops
  // stalled targets. Call about every 100 ms.
  void Tick(base::Nanos now);

  const TargetPool& targets() const { return targets_; }
  size_t choices() const { return choices_.size(); }

 private:
  struct Choice {
    Choice(schemas::Submit submit, ChoiceSink sink, TimeLimit limit)
        : replay(std::move(submit)), sink(std::move(sink)), limit(limit) {}
    bool expired(base::Nanos now) const {
      return limit.timeout > 0 && now - limit.received >= limit.timeout;
    }
    RequestReplay replay;
    ChoiceSink sink;
    const TimeLimit limit;
    std::optional<link::PeerId> target;
    base::Nanos deadline = 0;               // without a target: when it fails
    std::set<link::PeerId> refused_by;      // overloaded targets
    uint32_t losses = 0;                    // targets lost while they ran it
    std::optional<link::PeerId> failed_on;  // the target whose step failed with it
    bool ended = false;                     // its sink is being called with the end
    uint64_t fingerprint = 0;
    bool exact = true;
  };

  Choice* Find(uint64_t id);
  void OnTokens(link::PeerId peer, schemas::Tokens message, base::Nanos now);
  void LeaveStalled(base::Nanos now);
  // Sends the choice to a target; false if there is none.
  bool Place(Choice& choice);
  void PlaceOrWait(Choice& choice, base::Nanos now);
  void Release(Choice& choice);
  // The running attempt ended before the output did: starts the next one, on another target or when
  // there is one.
  void Retry(uint64_t id, base::Nanos now);
  // Makes the next attempt wait for a target; false if the output was complete and only its end had
  // not been received.
  bool NextAttempt(uint64_t id, base::Nanos now);
  void Refused(uint64_t id, link::PeerId peer, schemas::Finish finish, const std::string& error,
               base::Nanos now);
  void End(uint64_t id, schemas::Tokens last);
  void Fail(uint64_t id, ApiError error);
  void Expire(uint64_t id);
  void Erase(uint64_t id);
  void ShowTargets();

  DispatcherOptions options_;
  TargetSender sender_;
  metrics::GatewayMetrics* metrics_;
  TargetPool targets_;
  std::map<uint64_t, std::unique_ptr<Choice>> choices_;
  uint64_t next_id_ = 1;
  base::Nanos now_ = 0;  // the latest argument `now`
  base::Nanos last_check_ = 0;
  FinishRate rate_;
  bool backlog_ = false;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_DISPATCHER_H_
