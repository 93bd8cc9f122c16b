#ifndef SPECFABRIC_GATEWAY_DISPATCHER_H_
#define SPECFABRIC_GATEWAY_DISPATCHER_H_

// Sends choices to targets and brings back their tokens; where a target is lost, drains or refuses,
// sends them on to another. A state machine: it is told of peers, messages and time, and called on
// one thread.

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
  size_t max_choices = 1024;                    // at once; more are refused
  base::Nanos target_wait = 5 * base::kSecond;  // for a target to come (back)
  // A target that has work and is silent for so long is left, whatever its connection says: its
  // engine gives a sign of life every second, but for the length of a step. 0: never.
  base::Nanos stall_timeout = 30 * base::kSecond;
  // Targets that may be lost under one choice before it is given up, so that a request which kills
  // targets does not kill them all.
  uint32_t max_attempts = 8;
};

// Where the dispatcher's messages go; link::Link in a gateway.
struct TargetSender {
  std::function<absl::Status(link::PeerId, const schemas::Submit&)> submit;
  std::function<void(link::PeerId, const schemas::Cancel&)> cancel;
  std::function<void(link::PeerId)> close;  // ends the connection
  // Takes what is left of a choice that is over, where freeing it takes long. May be null.
  std::function<void(schemas::Submit)> discard = nullptr;
};

// What the owner of a choice is told: tokens in order, each once. After `failed`, or tokens with
// finish kStop or kLength, nothing more comes and the choice's id is free. May call
// Dispatcher::Cancel of any choice.
struct ChoiceSink {
  std::function<void(schemas::Tokens)> tokens;
  std::function<void(ApiError)> failed;
};

// How the answer to one choice came about.
struct ChoiceRecord {
  schemas::Speculation speculation;
  uint64_t fingerprint = 0;   // numerics of the target that began it; 0 if unknown
  bool exact = true;          // all its tokens came from those numerics
  int32_t cached_tokens = 0;  // of its prompt
};
Exactness ExactnessOf(const ChoiceRecord& record);

// What sending a choice to a target costs the io thread, in prompt tokens to encode (the message
// itself costs about as much as a thousand), and how much of it a turn is good for: some 100 us.
constexpr size_t kSubmitsATurn = 64 << 10;
inline size_t SubmitCost(const schemas::Submit& submit) {
  return submit.sequence.prompt.size() + submit.sequence.generated.size() + 1000;
}

class Dispatcher {
 public:
  Dispatcher(DispatcherOptions options, TargetSender sender, metrics::GatewayMetrics* metrics);

  // Room for this many more choices?
  bool HasRoom(size_t choices) const { return choices_.size() + choices <= options_.max_choices; }
  // `submit` without request id or attempt. Returns the id. `sink` is never called from within.
  uint64_t Start(schemas::Submit submit, ChoiceSink sink, base::Nanos now, TimeLimit limit = {});
  // The client does not want it any more; tells the target. Unknown ids are ignored.
  void Cancel(uint64_t id);
  // Seconds after which one that found no room had better try again: when what is under way now
  // will have finished.
  int RetryAfter(base::Nanos now) const { return rate_.SecondsUntilDone(choices_.size(), now); }
  // Of a live choice, or of one whose sink is just being told its end.
  ChoiceRecord Record(uint64_t id) const;

  void OnUp(link::PeerId peer, const schemas::Hello& hello, base::Nanos now);
  void OnDown(link::PeerId peer, base::Nanos now);
  void OnDrain(link::PeerId peer);
  void OnBatch(link::PeerId peer, schemas::TokensBatch batch, base::Nanos now);
  // More choices wait for a target, one is there, and a turn's work is done: call PlaceWaiting in a
  // later turn of the io thread. Any method may make it so.
  bool backlog() const { return backlog_; }
  void PlaceWaiting(base::Nanos now);
  // Places what waits for a target, gives up what has waited or taken too long, and leaves targets
  // that have stalled. Call every 100 ms or so.
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
    base::Nanos deadline = 0;               // without a target: when to give up
    std::set<link::PeerId> refused_by;      // too busy
    uint32_t losses = 0;                    // targets that went away under it
    std::optional<link::PeerId> failed_on;  // the target whose step failed on it
    bool ended = false;                     // its sink is being told so
    uint64_t fingerprint = 0;
    bool exact = true;
  };

  Choice* Find(uint64_t id);
  void OnTokens(link::PeerId peer, schemas::Tokens message, base::Nanos now);
  void LeaveStalled(base::Nanos now);
  // Sends it to a target; false if there is none.
  bool Place(Choice& choice);
  void PlaceOrWait(Choice& choice, base::Nanos now);
  void Release(Choice& choice);
  // The running attempt is over without an end: on to the next one, on another target or later.
  void Retry(uint64_t id, base::Nanos now);
  // Makes that attempt ready and leaves it to wait; false if only the end was missing.
  bool NextAttempt(uint64_t id, base::Nanos now);
  void Refused(uint64_t id, link::PeerId peer, schemas::Finish finish, const std::string& error,
               base::Nanos now);
  void End(uint64_t id, schemas::Tokens last);
  void Fail(uint64_t id, ApiError error);
  void Expire(uint64_t id);
  // It is over, and off the list.
  void Erase(uint64_t id);
  void ShowTargets();

  DispatcherOptions options_;
  TargetSender sender_;
  metrics::GatewayMetrics* metrics_;
  TargetPool targets_;
  std::map<uint64_t, std::unique_ptr<Choice>> choices_;
  uint64_t next_id_ = 1;
  base::Nanos now_ = 0;  // the last that it was told
  base::Nanos last_check_ = 0;
  FinishRate rate_;
  bool backlog_ = false;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_DISPATCHER_H_
