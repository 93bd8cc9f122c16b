#ifndef SPECFABRIC_SCHEDULER_ROUTING_DRAFT_ROUTER_H_
#define SPECFABRIC_SCHEDULER_ROUTING_DRAFT_ROUTER_H_

// Which draft worker drafts for a sequence. Pure: time is an argument, and the owner (the target's
// leader thread) reports the outcome of every request.
//
// A sequence has a home, the worker that has its KV cache, and stays there as long as that worker
// is in service, unless the policy finds a clearly better one: after a move the new worker must
// prefill all committed tokens. A worker that misses `max_misses` requests in a row is out of
// service, whatever the policy; it is then probed with one request at a time, at intervals that
// double.

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
  kAffinity,     // a new sequence takes the worker with the fewest per capacity, and stays
  kRoundRobin,   // a new sequence takes the next worker in turn, and stays
  kLeastLoaded,  // as kAffinity, and moves to a worker with clearly fewer
  kLatency,      // takes the worker with the lowest latency, and moves to one with a clearly lower
};
const char* Name(RoutePolicy policy);
// InvalidArgument names the allowed ones.
absl::StatusOr<RoutePolicy> ParseRoutePolicy(std::string_view name);

struct DraftRouterOptions {
  RoutePolicy policy = RoutePolicy::kAffinity;
  int32_t max_misses = 5;
  base::Nanos min_backoff = 100 * base::kMillisecond;
  base::Nanos max_backoff = 10 * base::kSecond;
  // Orders workers that are equally good; 0: by id. Targets that share a pool have different salts,
  // or all of them would begin with the same workers.
  uint64_t salt = 0;

  // A sequence moves to another worker if that saves this share of a round's time at its home, ...
  double min_gain = 0.25;
  // ... and in so many rounds more than the prefill at the new home costs, ...
  int32_t payback_rounds = 32;
  // ... it has been at its home for so long, ...
  base::Nanos min_stay = base::kSecond;
  // ... and no other has moved to that worker for so long: the effect of one move must show first.
  base::Nanos settle = 100 * base::kMillisecond;
  // A worker without a reply for so long is assumed to be as fast as the others.
  base::Nanos latency_ttl = 5 * base::kSecond;
};

// What the router knows of one worker.
struct DraftState {
  DraftId id = 0;
  int32_t capacity = 0;          // sessions at once
  int32_t free_sessions = 0;     // as last reported, less what was assigned since
  int32_t outstanding = 0;       // requests without an outcome
  int32_t homes = 0;             // sequences whose home it is
  base::Nanos latency = 0;       // smoothed, of replies; 0: not known
  base::Nanos last_latency = 0;  // of the last reply, not smoothed, prefill included; 0 before it
  int32_t consecutive_misses = 0;
  bool draining = false;        // keeps no sequence and takes none
  bool out = false;             // of service, after misses
  bool probing = false;         // out: the probe has no outcome yet
  base::Nanos probe_at = 0;     // out: the time of the next probe
  base::Nanos backoff = 0;      // out: the interval before it
  base::Nanos busy_until = 0;   // it refused because its sessions were taken: not asked before this
  base::Nanos measured_at = 0;  // when its latency was last measured
  base::Nanos joined = 0;       // when a sequence last moved to it
  uint64_t replies = 0, misses = 0, moves = 0;  // since it came up; moves: of sequences to it
};

class DraftRouter {
 public:
  explicit DraftRouter(const DraftRouterOptions& options = {}) : options_(options) {}

  void OnUp(DraftId draft, int32_t capacity);  // also after a restart: forgets its earlier state
  void OnDown(DraftId draft);
  void OnDrain(DraftId draft);

  // The worker for this sequence's next request, which counts as outstanding until one of OnReply,
  // OnRefused, OnMiss, OnBusy and OnAbandoned, to be called even if the sequence ends before.
  // `length`: tokens that a worker other than its home would have to prefill first. None if no
  // worker can take it.
  std::optional<DraftId> Route(base::SequenceId sequence, int32_t length, base::Nanos now);

  // Where the sequence's next request will go as far as is known now, without one being sent: its
  // home, the worker that becomes it, or one that is out of service and may be probed now. For what
  // a worker is to have before the first request.
  std::optional<DraftId> Settle(base::SequenceId sequence, int32_t length, base::Nanos now);

  // The outcome of one routed request. Workers that are gone since are ignored.
  void OnReply(DraftId draft, base::SequenceId sequence, base::Nanos latency, int32_t free_sessions,
               base::Nanos now);
  // The worker works but makes no tree for this sequence, for a reason other than its load.
  void OnRefused(DraftId draft);
  void OnMiss(DraftId draft, base::Nanos now);
  // The worker refused because all its sessions are taken: the sequence has no home any more.
  void OnBusy(DraftId draft, base::SequenceId sequence, base::Nanos now);

  // A reply to an abandoned request before its deadline: the worker works.
  void OnUnusedReply(DraftId draft, base::SequenceId sequence, base::Nanos latency,
                     base::Nanos now);
  // A reply to a request already reported as missed, or to an abandoned one after its deadline:
  // only its latency counts.
  void OnLateReply(DraftId draft, base::SequenceId sequence, base::Nanos latency, base::Nanos now);
  // The sequence of a routed request ended, or went on without a draft, before there was an
  // outcome: no miss.
  void OnAbandoned(DraftId draft);
  // The sequence has ended.
  void OnEnd(base::SequenceId sequence);

  std::optional<DraftId> Home(base::SequenceId sequence) const;
  const std::vector<DraftState>& States() const { return drafts_; }  // ascending by id
  // Time that a token of the prefix adds to a worker's first reply; 0 before the first measurement.
  double prefill_ns() const { return prefill_ns_; }

 private:
  struct HomeWorker {
    DraftId draft = 0;
    base::Nanos since = 0;
    int32_t unread = 0;  // tokens that the worker prefills before its next reply
  };

  DraftState* Find(DraftId draft);
  bool Serves(const DraftState& state) const { return !state.out && !state.draining; }
  bool ProbeDue(const DraftState& state, base::Nanos now) const;
  bool Takes(const DraftState& state, base::Nanos now) const;
  bool Better(const DraftState& a, const DraftState& b, base::Nanos now) const;
  // The worker for a sequence without a home, by policy.
  DraftState* Choose(base::Nanos now);
  DraftState* NextInTurn(base::Nanos now);
  // The worker that a sequence should move to; null: none.
  DraftState* BetterHome(const HomeWorker& residence, const DraftState& home, int32_t length,
                         base::Nanos now);
  // Time that a round at `other` saves, in ns; 0 unless it is clearly better.
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
  double prefill_ns_ = 0;  // of a token, smoothed over all workers
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_ROUTING_DRAFT_ROUTER_H_
