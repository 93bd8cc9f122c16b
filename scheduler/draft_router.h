#ifndef SPECFABRIC_SCHEDULER_DRAFT_ROUTER_H_
#define SPECFABRIC_SCHEDULER_DRAFT_ROUTER_H_

// Which draft worker drafts for a sequence. Pure: time is an argument, and the owner (the target's
// leader thread) reports what became of every request.
//
// A sequence stays with the worker that holds its KV cache, its home, as long as that worker is in
// service; otherwise it goes to the least loaded one. A worker that misses `max_misses` in a row is
// taken out of service and then tried with one request at a time, after waits that double.

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/types.h"

namespace specfabric::scheduler {

using DraftId = uint64_t;  // chosen by the owner, e.g. the peer's

struct DraftRouterOptions {
  int32_t max_misses = 5;
  base::Nanos min_backoff = 100 * base::kMillisecond;
  base::Nanos max_backoff = 10 * base::kSecond;
};

// What the router knows of one worker.
struct DraftState {
  DraftId id = 0;
  int32_t capacity = 0;       // sessions at once
  int32_t free_sessions = 0;  // as last reported, less what was assigned since
  int32_t outstanding = 0;    // requests without an outcome
  int32_t homes = 0;          // sequences that stay with it
  base::Nanos latency = 0;    // smoothed, of replies; 0 before the first
  int32_t consecutive_misses = 0;
  bool draining = false;       // keeps no sequence and takes none
  bool out = false;            // of service, for its misses
  bool probing = false;        // out: the one request has no outcome yet
  base::Nanos probe_at = 0;    // out: when it may be tried again
  base::Nanos backoff = 0;     // out: the wait before that
  base::Nanos busy_until = 0;  // refused for want of sessions: not again before this
};

class DraftRouter {
 public:
  explicit DraftRouter(const DraftRouterOptions& options = {}) : options_(options) {}

  void OnUp(DraftId draft, int32_t capacity);  // also after a restart: starts afresh
  void OnDown(DraftId draft);
  void OnDrain(DraftId draft);

  // The worker for this sequence's next request, which counts as outstanding until one of OnReply,
  // OnMiss and OnBusy, to be called even if the sequence ends before. Nothing if no worker can take
  // it.
  std::optional<DraftId> Route(base::SequenceId sequence, base::Nanos now);

  // The outcome of one routed request. Unknown workers (gone since) are ignored.
  void OnReply(DraftId draft, base::Nanos latency, int32_t free_sessions);
  void OnMiss(DraftId draft, base::Nanos now);
  // The worker refused for want of sessions: the sequence has no home any more.
  void OnBusy(DraftId draft, base::SequenceId sequence, base::Nanos now);

  // A reply to a request already reported as missed: only its latency counts.
  void OnLateReply(DraftId draft, base::Nanos latency);
  // The sequence of a routed request ended before there was an outcome: nobody is to blame.
  void OnAbandoned(DraftId draft);
  // The sequence is over.
  void OnEnd(base::SequenceId sequence);

  std::optional<DraftId> Home(base::SequenceId sequence) const;
  std::vector<DraftState> States() const;  // ascending by id

 private:
  DraftState* Find(DraftId draft);
  bool Serves(const DraftState& state) const { return !state.out && !state.draining; }
  bool ProbeDue(const DraftState& state, base::Nanos now) const;
  DraftState* LeastLoaded(base::Nanos now);
  DraftState* DueProbe(base::Nanos now);
  void SetHome(base::SequenceId sequence, DraftState* state);
  void ClearHome(base::SequenceId sequence);

  DraftRouterOptions options_;
  std::vector<DraftState> drafts_;  // ascending by id
  std::unordered_map<base::SequenceId, DraftId> homes_;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_DRAFT_ROUTER_H_
