#include "scheduler/routing/draft_router.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"

namespace specfabric::scheduler {
namespace {

bool ById(const DraftState& state, DraftId id) { return state.id < id; }

// A request has its outcome; it may have been sent before the worker restarted.
void HasOutcome(DraftState* state) { state->outstanding = std::max(0, state->outstanding - 1); }

// The worker has answered, whatever it said: it is in service again.
void Alive(DraftState* state) {
  state->consecutive_misses = 0;
  state->out = false;
  state->probing = false;
  state->backoff = 0;
}

// Sequences of a worker per capacity, once `joining` more have moved to it.
double Load(const DraftState& state, int32_t joining) {
  return static_cast<double>(state.homes + joining) / std::max(1, state.capacity);
}

void Smooth(base::Nanos latency, DraftState* state) {
  state->latency = state->latency == 0 ? latency : state->latency + (latency - state->latency) / 8;
}

}  // namespace

const char* Name(RoutePolicy policy) {
  switch (policy) {
    case RoutePolicy::kAffinity:
      return "affinity";
    case RoutePolicy::kRoundRobin:
      return "round_robin";
    case RoutePolicy::kLeastLoaded:
      return "least_loaded";
    case RoutePolicy::kLatency:
      return "latency";
  }
  return "";
}

absl::StatusOr<RoutePolicy> ParseRoutePolicy(std::string_view name) {
  for (RoutePolicy policy : {RoutePolicy::kAffinity, RoutePolicy::kRoundRobin,
                             RoutePolicy::kLeastLoaded, RoutePolicy::kLatency}) {
    if (name == Name(policy)) return policy;
  }
  return absl::InvalidArgumentError("allowed are affinity, round_robin, least_loaded and latency");
}

void DraftRouter::OnUp(DraftId draft, int32_t capacity) {
  OnDown(draft);
  DraftState state;
  state.id = draft;
  state.capacity = capacity;
  state.free_sessions = capacity;
  drafts_.insert(std::lower_bound(drafts_.begin(), drafts_.end(), draft, ById), state);
}

void DraftRouter::OnDown(DraftId draft) {
  std::erase_if(drafts_, [&](const DraftState& state) { return state.id == draft; });
  std::erase_if(homes_, [&](const auto& home) { return home.second.draft == draft; });
}

void DraftRouter::OnDrain(DraftId draft) {
  if (DraftState* state = Find(draft)) state->draining = true;
}

std::optional<DraftId> DraftRouter::Route(base::SequenceId sequence, int32_t length,
                                          base::Nanos now) {
  const auto home = homes_.find(sequence);
  DraftState* state = home == homes_.end() ? nullptr : Find(home->second.draft);
  if (state == nullptr || !Serves(*state)) {
    // Only sequences without a home are used as probes.
    state = DueProbe(now);
    if (state != nullptr) {
      state->probing = true;
      state->probe_at = now + state->backoff;  // if the outcome is never reported
    } else {
      state = Choose(now);
    }
    if (state == nullptr) return std::nullopt;
    SetHome(sequence, length, now, state);
  } else if (DraftState* better = BetterHome(home->second, *state, length, now)) {
    state = better;
    SetHome(sequence, length, now, state);
    state->joined = now;
    ++state->moves;
  }
  ++state->outstanding;
  return state->id;
}

std::optional<DraftId> DraftRouter::Settle(base::SequenceId sequence, int32_t length,
                                           base::Nanos now) {
  const auto home = homes_.find(sequence);
  DraftState* state = home == homes_.end() ? nullptr : Find(home->second.draft);
  if (state != nullptr && Serves(*state)) return state->id;
  // Without what it needs a worker would miss every probe.
  if (const DraftState* probed = DueProbe(now)) return probed->id;
  state = Choose(now);
  if (state == nullptr) return std::nullopt;
  SetHome(sequence, length, now, state);
  return state->id;
}

void DraftRouter::OnReply(DraftId draft, base::SequenceId sequence, base::Nanos latency,
                          int32_t free_sessions, base::Nanos now) {
  DraftState* state = Find(draft);
  if (state == nullptr) return;
  HasOutcome(state);
  Learn(state, sequence, latency, now);
  state->free_sessions = free_sessions;
  ++state->replies;
  Alive(state);
}

void DraftRouter::OnRefused(DraftId draft) {
  DraftState* state = Find(draft);
  if (state == nullptr) return;
  HasOutcome(state);
  Alive(state);
}

void DraftRouter::OnMiss(DraftId draft, base::Nanos now) {
  DraftState* state = Find(draft);
  if (state == nullptr) return;
  HasOutcome(state);
  ++state->misses;
  ++state->consecutive_misses;
  if (!state->out && state->consecutive_misses < options_.max_misses) return;
  // A request from before it was taken out may still miss: that does not double the interval.
  if (state->out && !state->probing) return;
  state->backoff =
      state->out ? std::min(2 * state->backoff, options_.max_backoff) : options_.min_backoff;
  state->out = true;
  state->probing = false;
  state->probe_at = now + state->backoff;
}

void DraftRouter::OnBusy(DraftId draft, base::SequenceId sequence, base::Nanos now) {
  DraftState* state = Find(draft);
  if (state == nullptr) return;
  HasOutcome(state);
  if (Home(sequence) == draft) ClearHome(sequence);
  Alive(state);
  state->free_sessions = 0;
  state->busy_until = now + options_.min_backoff;
}

void DraftRouter::OnUnusedReply(DraftId draft, base::SequenceId sequence, base::Nanos latency,
                                base::Nanos now) {
  DraftState* state = Find(draft);
  if (state == nullptr) return;
  Learn(state, sequence, latency, now);
  Alive(state);
}

void DraftRouter::OnLateReply(DraftId draft, base::SequenceId sequence, base::Nanos latency,
                              base::Nanos now) {
  if (DraftState* state = Find(draft)) Learn(state, sequence, latency, now);
}

void DraftRouter::OnAbandoned(DraftId draft) {
  if (DraftState* state = Find(draft)) HasOutcome(state);
}

void DraftRouter::OnEnd(base::SequenceId sequence) { ClearHome(sequence); }

std::optional<DraftId> DraftRouter::Home(base::SequenceId sequence) const {
  const auto home = homes_.find(sequence);
  if (home == homes_.end()) return std::nullopt;
  return home->second.draft;
}

DraftState* DraftRouter::Find(DraftId draft) {
  const auto at = std::lower_bound(drafts_.begin(), drafts_.end(), draft, ById);
  return at != drafts_.end() && at->id == draft ? &*at : nullptr;
}

bool DraftRouter::ProbeDue(const DraftState& state, base::Nanos now) const {
  return state.out && !state.draining && now >= state.probe_at;
}

// The first reply at a new home includes the prefill of the whole prefix. The time beyond the usual
// is learned as prefill time, so that moves do not make their destination look slow.
void DraftRouter::Learn(DraftState* state, base::SequenceId sequence, base::Nanos latency,
                        base::Nanos now) {
  const auto home = homes_.find(sequence);
  int32_t read = 0;
  if (home != homes_.end() && home->second.draft == state->id) {
    read = std::exchange(home->second.unread, 0);
  }
  if (!Fresh(*state, now)) state->latency = 0;
  state->measured_at = now;
  state->last_latency = latency;
  if (read == 0) return Smooth(latency, state);
  const auto learn_prefill = [&](base::Nanos prefill) {
    const double sample = static_cast<double>(prefill) / read;
    prefill_ns_ = prefill_ns_ == 0 ? sample : prefill_ns_ + (sample - prefill_ns_) / 8;
  };
  if (state->latency != 0 && latency >= state->latency) {
    return learn_prefill(latency - state->latency);
  }
  const auto prefill = static_cast<base::Nanos>(prefill_ns_ * read);
  if (prefill <= latency / 2) return Smooth(latency - prefill, state);
  // The difference of two nearly equal times says nothing about the round. What is known is that
  // neither the round nor the prefill took longer than the reply.
  if (prefill > latency) learn_prefill(latency);
  if (state->latency != 0) Smooth(latency, state);
}

// The free sessions that a worker reported last may be out of date, since other targets use it too:
// one without a free session is the last choice, but is tried until it refuses.
bool DraftRouter::Takes(const DraftState& state, base::Nanos now) const {
  return Serves(state) && (state.free_sessions > 0 || now >= state.busy_until);
}

bool DraftRouter::Fresh(const DraftState& state, base::Nanos now) const {
  return state.latency != 0 && now - state.measured_at < options_.latency_ttl;
}

double DraftRouter::ExpectedLatency(const DraftState& state, base::Nanos now) const {
  if (Fresh(state, now)) return static_cast<double>(state.latency);
  double sum = 0;
  int known = 0;
  for (const DraftState& other : drafts_) {
    if (other.out || !Fresh(other, now)) continue;
    sum += static_cast<double>(other.latency);
    ++known;
  }
  return known == 0 ? 0 : sum / known;
}

uint64_t DraftRouter::Order(const DraftState& state) const {
  return options_.salt == 0 ? state.id : base::Mix64(state.id ^ options_.salt);
}

// Compares by: a free session, lower latency (kLatency only), fewer sequences per capacity, fewer
// outstanding requests, lower latency, order.
bool DraftRouter::Better(const DraftState& a, const DraftState& b, base::Nanos now) const {
  if ((a.free_sessions > 0) != (b.free_sessions > 0)) return a.free_sessions > 0;
  if (options_.policy == RoutePolicy::kLatency) {
    const double latency_a = ExpectedLatency(a, now), latency_b = ExpectedLatency(b, now);
    if (latency_a != latency_b) return latency_a < latency_b;
  }
  if (Load(a, 0) != Load(b, 0)) return Load(a, 0) < Load(b, 0);
  if (a.outstanding != b.outstanding) return a.outstanding < b.outstanding;
  if (a.latency != b.latency) return a.latency < b.latency;
  return Order(a) < Order(b);
}

DraftState* DraftRouter::Choose(base::Nanos now) {
  if (options_.policy == RoutePolicy::kRoundRobin) return NextInTurn(now);
  DraftState* best = nullptr;
  for (DraftState& state : drafts_) {
    if (!Takes(state, now)) continue;
    if (best == nullptr || Better(state, *best, now)) best = &state;
  }
  return best;
}

DraftState* DraftRouter::NextInTurn(base::Nanos now) {
  const auto from = std::upper_bound(drafts_.begin(), drafts_.end(), last_in_turn_,
                                     [](DraftId id, const auto& state) { return id < state.id; });
  const auto first = static_cast<size_t>(from - drafts_.begin());
  DraftState* full = nullptr;
  for (size_t i = 0; i < drafts_.size(); ++i) {
    DraftState& state = drafts_[(first + i) % drafts_.size()];
    if (!Takes(state, now)) continue;
    if (state.free_sessions > 0) {
      last_in_turn_ = state.id;
      return &state;
    }
    if (full == nullptr) full = &state;
  }
  if (full != nullptr) last_in_turn_ = full->id;
  return full;
}

double DraftRouter::Gain(const DraftState& home, const DraftState& other, base::Nanos now) const {
  const double here = static_cast<double>(home.latency);
  double gain = 0;
  if (options_.policy == RoutePolicy::kLatency) {
    gain = here - ExpectedLatency(other, now);
  } else {
    // Assumes that a worker's time grows in proportion to its sequences.
    gain = here * (1 - Load(other, 1) / Load(home, 0));
  }
  return gain >= options_.min_gain * here ? gain : 0;
}

DraftState* DraftRouter::BetterHome(const HomeWorker& residence, const DraftState& home,
                                    int32_t length, base::Nanos now) {
  if (options_.policy != RoutePolicy::kLeastLoaded && options_.policy != RoutePolicy::kLatency) {
    return nullptr;
  }
  if (!Fresh(home, now) || now - residence.since < options_.min_stay) return nullptr;
  DraftState* best = nullptr;
  double most = prefill_ns_ * length / std::max(1, options_.payback_rounds);
  for (DraftState& state : drafts_) {
    if (state.id == home.id || !Serves(state) || state.free_sessions == 0) continue;
    if (state.joined != 0 && now - state.joined < options_.settle) continue;
    const double gain = Gain(home, state, now);
    if (gain <= most) continue;
    most = gain;
    best = &state;
  }
  return best;
}

DraftState* DraftRouter::DueProbe(base::Nanos now) {
  for (DraftState& state : drafts_) {
    if (ProbeDue(state, now)) return &state;
  }
  return nullptr;
}

void DraftRouter::SetHome(base::SequenceId sequence, int32_t length, base::Nanos now,
                          DraftState* state) {
  ClearHome(sequence);
  homes_[sequence] = {state->id, now, length};
  ++state->homes;
  if (state->free_sessions > 0) --state->free_sessions;
}

void DraftRouter::ClearHome(base::SequenceId sequence) {
  const auto home = homes_.find(sequence);
  if (home == homes_.end()) return;
  if (DraftState* state = Find(home->second.draft)) {
    --state->homes;
    state->free_sessions = std::min(state->capacity, state->free_sessions + 1);
  }
  homes_.erase(home);
}

}  // namespace specfabric::scheduler
