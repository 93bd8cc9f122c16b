#ifndef SPECFABRIC_SCHEDULER_ROUTING_DRAFT_ROUTER_H_
#define SPECFABRIC_SCHEDULER_ROUTING_DRAFT_ROUTER_H_

// Which draft worker drafts for a sequence. Pure: time is an argument, and the owner (the target's
// leader thread) reports what became of every request.
//
// A sequence has a home, the worker that holds its KV cache, and stays there as long as that worker
// is in service, unless the policy finds a clearly better one: a move costs the new worker the
// prefill of everything committed so far. A worker that misses `max_misses` in a row is taken out
// of service and then tried with one request at a time, after waits that double, whatever the
// policy.

#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/types.h"

namespace specfabric::scheduler {

using DraftId = uint64_t;  // chosen by the owner, e.g. the peer's

enum class RoutePolicy {
  kAffinity,     // a new sequence takes the worker with the fewest for its size, and stays
  kRoundRobin,   // a new sequence takes the next worker in turn, and stays
  kLeastLoaded,  // as kAffinity, and moves where there are clearly fewer
  kLatency,      // takes the worker that answers soonest, and moves where that is clearly sooner
};
const char* Name(RoutePolicy policy);
// InvalidArgument names those that are allowed.
absl::StatusOr<RoutePolicy> ParseRoutePolicy(std::string_view name);

struct DraftRouterOptions {
  RoutePolicy policy = RoutePolicy::kAffinity;
  int32_t max_misses = 5;
  base::Nanos min_backoff = 100 * base::kMillisecond;
  base::Nanos max_backoff = 10 * base::kSecond;
  // In what order workers are taken that are equally good; 0: by id. Targets that share a pool have
  // different ones, or all of them would begin with the same workers.
  uint64_t salt = 0;

  // When a sequence moves: the other worker is better by this share of what its home takes, ...
  double min_gain = 0.25;
  // ... what it gains in so many rounds is more than the prefill at the new home costs, ...
  int32_t payback_rounds = 32;
  // ... it has been at its home for so long, ...
  base::Nanos min_stay = base::kSecond;
  // ... and nobody has moved to the other for so long: the effect of one move must show first.
  base::Nanos settle = 100 * base::kMillisecond;
  // A worker that has not answered for so long is taken to be as quick as the others.
  base::Nanos latency_ttl = 5 * base::kSecond;
};

// What the router knows of one worker.
struct DraftState {
  DraftId id = 0;
  int32_t capacity = 0;        // sessions at once
  int32_t free_sessions = 0;   // as last reported, less what was assigned since
  int32_t outstanding = 0;     // requests without an outcome
  int32_t homes = 0;           // sequences that stay with it
  base::Nanos latency = 0;     // smoothed, of replies; 0: not known
  base::Nanos last_reply = 0;  // what the last one took, prefill included; 0 before the first
  int32_t consecutive_misses = 0;
  bool draining = false;       // keeps no sequence and takes none
  bool out = false;            // of service, for its misses
  bool probing = false;        // out: the one request has no outcome yet
  base::Nanos probe_at = 0;    // out: when it may be tried again
  base::Nanos backoff = 0;     // out: the wait before that
  base::Nanos busy_until = 0;  // refused for want of sessions: not again before this
  base::Nanos answered = 0;    // when its latency was last seen
  base::Nanos joined = 0;      // when a sequence last moved to it
  uint64_t replies = 0, misses = 0, moves = 0;  // since it came up; moves: of sequences to it
};

class DraftRouter {
 public:
  explicit DraftRouter(const DraftRouterOptions& options = {}) : options_(options) {}

  void OnUp(DraftId draft, int32_t capacity);  // also after a restart: starts afresh
  void OnDown(DraftId draft);
  void OnDrain(DraftId draft);

  // The worker for this sequence's next request, which counts as outstanding until one of OnReply,
  // OnRefused, OnMiss, OnBusy and OnAbandoned, to be called even if the sequence ends before.
  // `length`: tokens that a worker other than its home would have to read first. Nothing if no
  // worker can take it.
  std::optional<DraftId> Route(base::SequenceId sequence, int32_t length, base::Nanos now);

  // The outcome of one routed request. Unknown workers (gone since) are ignored.
  void OnReply(DraftId draft, base::SequenceId sequence, base::Nanos latency, int32_t free_sessions,
               base::Nanos now);
  // The worker is well and has no tree for this sequence, whatever its load.
  void OnRefused(DraftId draft);
  void OnMiss(DraftId draft, base::Nanos now);
  // The worker refused for want of sessions: the sequence has no home any more.
  void OnBusy(DraftId draft, base::SequenceId sequence, base::Nanos now);

  // A reply to an abandoned request, in time, though nobody waited for it any more: the worker is
  // well.
  void OnUnusedReply(DraftId draft, base::SequenceId sequence, base::Nanos latency,
                     base::Nanos now);
  // A reply to a request already reported as missed, or to an abandoned one after its deadline:
  // only its latency counts.
  void OnLateReply(DraftId draft, base::SequenceId sequence, base::Nanos latency, base::Nanos now);
  // The sequence of a routed request ended, or went on without, before there was an outcome: nobody
  // is to blame.
  void OnAbandoned(DraftId draft);
  // The sequence is over.
  void OnEnd(base::SequenceId sequence);

  std::optional<DraftId> Home(base::SequenceId sequence) const;
  const std::vector<DraftState>& States() const { return drafts_; }  // ascending by id
  // What a token of a prefix adds to a worker's first reply; 0 before any was seen.
  double prefill_ns() const { return prefill_ns_; }

 private:
  struct HomeWorker {
    DraftId draft = 0;
    base::Nanos since = 0;
    int32_t unread = 0;  // tokens that the next reply will have taken in; 0: it has read them all
  };

  DraftState* Find(DraftId draft);
  bool Serves(const DraftState& state) const { return !state.out && !state.draining; }
  bool ProbeDue(const DraftState& state, base::Nanos now) const;
  bool Takes(const DraftState& state, base::Nanos now) const;
  bool Better(const DraftState& a, const DraftState& b, base::Nanos now) const;
  // By policy: for a sequence without a home.
  DraftState* Choose(base::Nanos now);
  DraftState* NextInTurn(base::Nanos now);
  // Where a sequence had better move to; null: nowhere.
  DraftState* BetterHome(const HomeWorker& residence, const DraftState& home, int32_t length,
                         base::Nanos now);
  // What a round at `other` saves, in ns; 0 where that is not clear.
  double Gain(const DraftState& home, const DraftState& other, base::Nanos now) const;
  bool Fresh(const DraftState& state, base::Nanos now) const;
  double ExpectedLatency(const DraftState& state, base::Nanos now) const;
  void Learn(DraftState* state, base::SequenceId sequence, base::Nanos latency, base::Nanos now);
  uint64_t Order(const DraftState& state) const;
  DraftState* DueProbe(base::Nanos now);
  void SetHome(base::SequenceId sequence, int32_t length, base::Nanos now, DraftState* state);
  void ClearHome(base::SequenceId sequence);

  DraftRouterOptions options_;
  std::vector<DraftState> drafts_;  // ascending by id
  std::unordered_map<base::SequenceId, HomeWorker> homes_;
  DraftId last_in_turn_ = 0;
  double prefill_ns_ = 0;  // a token, smoothed over all workers
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_ROUTING_DRAFT_ROUTER_H_
