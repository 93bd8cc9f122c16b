#include "scheduler/draft_router.h"

#include <algorithm>

namespace specfabric::scheduler {
namespace {

bool ById(const DraftState& state, DraftId id) { return state.id < id; }

// A request has its outcome. Outcomes of requests to an earlier life of the worker may still come.
void Settle(DraftState* state) { state->outstanding = std::max(0, state->outstanding - 1); }

// The worker has answered: back in service, whatever the answer.
void Alive(DraftState* state) {
  state->consecutive_misses = 0;
  state->out = false;
  state->probing = false;
  state->backoff = 0;
}

// One with a free session, then fewer sequences for its size, then fewer requests under way, then
// quicker, then the lower id.
bool LessLoaded(const DraftState& a, const DraftState& b) {
  if ((a.free_sessions > 0) != (b.free_sessions > 0)) return a.free_sessions > 0;
  const int64_t load_a = int64_t{a.homes} * std::max(1, b.capacity);
  const int64_t load_b = int64_t{b.homes} * std::max(1, a.capacity);
  if (load_a != load_b) return load_a < load_b;
  if (a.outstanding != b.outstanding) return a.outstanding < b.outstanding;
  if (a.latency != b.latency) return a.latency < b.latency;
  return a.id < b.id;
}

void Smooth(base::Nanos latency, DraftState* state) {
  state->latency = state->latency == 0 ? latency : state->latency + (latency - state->latency) / 8;
}

}  // namespace

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
  std::erase_if(homes_, [&](const auto& home) { return home.second == draft; });
}

void DraftRouter::OnDrain(DraftId draft) {
  if (DraftState* state = Find(draft)) state->draining = true;
}

std::optional<DraftId> DraftRouter::Route(base::SequenceId sequence, base::Nanos now) {
  const auto home = homes_.find(sequence);
  DraftState* state = home == homes_.end() ? nullptr : Find(home->second);
  if (state == nullptr || !Serves(*state)) {
    // A sequence whose worker serves well is not risked on a probe; one without a home is.
    state = DueProbe(now);
    if (state != nullptr) {
      state->probing = true;
      state->probe_at = now + state->backoff;  // again then, should the outcome never be reported
    } else {
      state = LeastLoaded(now);
    }
    if (state == nullptr) return std::nullopt;
    SetHome(sequence, state);
  }
  ++state->outstanding;
  return state->id;
}

void DraftRouter::OnReply(DraftId draft, base::Nanos latency, int32_t free_sessions) {
  DraftState* state = Find(draft);
  if (state == nullptr) return;
  Settle(state);
  Smooth(latency, state);
  state->free_sessions = free_sessions;
  Alive(state);
}

void DraftRouter::OnMiss(DraftId draft, base::Nanos now) {
  DraftState* state = Find(draft);
  if (state == nullptr) return;
  Settle(state);
  ++state->consecutive_misses;
  if (!state->out && state->consecutive_misses < options_.max_misses) return;
  // Requests of before it was taken out may still miss while it waits: they do not double the wait.
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
  Settle(state);
  if (Home(sequence) == draft) ClearHome(sequence);
  Alive(state);
  state->free_sessions = 0;
  state->busy_until = now + options_.min_backoff;
}

void DraftRouter::OnLateReply(DraftId draft, base::Nanos latency) {
  if (DraftState* state = Find(draft)) Smooth(latency, state);
}

void DraftRouter::OnAbandoned(DraftId draft) {
  if (DraftState* state = Find(draft)) Settle(state);
}

void DraftRouter::OnEnd(base::SequenceId sequence) { ClearHome(sequence); }

std::optional<DraftId> DraftRouter::Home(base::SequenceId sequence) const {
  const auto home = homes_.find(sequence);
  if (home == homes_.end()) return std::nullopt;
  return home->second;
}

std::vector<DraftState> DraftRouter::States() const { return drafts_; }

DraftState* DraftRouter::Find(DraftId draft) {
  const auto at = std::lower_bound(drafts_.begin(), drafts_.end(), draft, ById);
  return at != drafts_.end() && at->id == draft ? &*at : nullptr;
}

bool DraftRouter::ProbeDue(const DraftState& state, base::Nanos now) const {
  return state.out && !state.draining && now >= state.probe_at;
}

// What a worker last reported may be stale, for others use it too: one without a free session is
// the last choice, but is tried, until it refuses.
DraftState* DraftRouter::LeastLoaded(base::Nanos now) {
  DraftState* best = nullptr;
  for (DraftState& state : drafts_) {
    if (!Serves(state) || (state.free_sessions == 0 && now < state.busy_until)) continue;
    if (best == nullptr || LessLoaded(state, *best)) best = &state;
  }
  return best;
}

DraftState* DraftRouter::DueProbe(base::Nanos now) {
  for (DraftState& state : drafts_) {
    if (ProbeDue(state, now)) return &state;
  }
  return nullptr;
}

void DraftRouter::SetHome(base::SequenceId sequence, DraftState* state) {
  ClearHome(sequence);
  homes_[sequence] = state->id;
  ++state->homes;
  if (state->free_sessions > 0) --state->free_sessions;
}

void DraftRouter::ClearHome(base::SequenceId sequence) {
  const auto home = homes_.find(sequence);
  if (home == homes_.end()) return;
  if (DraftState* state = Find(home->second)) {
    --state->homes;
    state->free_sessions = std::min(state->capacity, state->free_sessions + 1);
  }
  homes_.erase(home);
}

}  // namespace specfabric::scheduler
