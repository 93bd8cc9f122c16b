#include "target/draft_watch.h"

#include "spdlog/spdlog.h"

namespace specfabric::target {

void DraftWatch::Up(scheduler::DraftId draft, const std::string& address,
                    const std::string& model) {
  workers_[draft] = {address, model};
  next_ = 0;
}

void DraftWatch::Down(scheduler::DraftId draft) {
  workers_.erase(draft);
  next_ = 0;
}

namespace {

// A worker's latency. While it has only sent first replies of sequences, which are mostly prefill,
// the time of the last of them. 0: not known.
base::Nanos Known(const scheduler::DraftState& state) {
  return state.latency != 0 ? state.latency : state.last_latency;
}

}  // namespace

bool DraftWatch::BecomesSlow(const scheduler::DraftState& state, base::Nanos now,
                             Worker* worker) const {
  if (state.latency <= warn_) {
    worker->above_since = -1;
    return false;
  }
  if (worker->above_since < 0) {
    worker->above_since = now;
    worker->replies_before = state.replies;
  }
  return now - worker->above_since >= kSlowFor &&
         state.replies - worker->replies_before >= kSlowReplies;
}

void DraftWatch::UpdateSlow(const scheduler::DraftState& state, base::Nanos now,
                            Worker* worker) const {
  const base::Nanos known = Known(state);
  if (warn_ == 0 || known == 0) return;
  const double ms = 1e3 * base::ToSeconds(known);
  const double limit = 1e3 * base::ToSeconds(warn_);
  if (!worker->slow && BecomesSlow(state, now, worker)) {
    worker->slow = true;
    spdlog::warn(
        "draft worker {} ({}) is slow: latency {:.3f} ms, above --draft_latency_warn "
        "({:.3f} ms)",
        worker->address, worker->model, ms, limit);
  } else if (worker->slow && known <= warn_ / 4 * 3) {
    worker->slow = false;
    worker->above_since = -1;
    spdlog::info(
        "draft worker {} ({}) is no longer slow: latency {:.3f} ms, below three quarters "
        "of --draft_latency_warn ({:.3f} ms)",
        worker->address, worker->model, ms, limit);
  }
}

void DraftWatch::Update(const std::vector<scheduler::DraftState>& states, base::Nanos now) {
  behind_ = now < next_;
  if (behind_) return;
  next_ = now + kInterval;
  std::vector<metrics::DraftRoute> routes;
  for (const scheduler::DraftState& state : states) {
    const auto it = workers_.find(state.id);
    if (it == workers_.end()) continue;
    Worker& worker = it->second;
    UpdateSlow(state, now, &worker);
    routes.push_back({.worker = worker.address,
                      .model = worker.model,
                      .latency_seconds = base::ToSeconds(Known(state)),
                      .outstanding = state.outstanding,
                      .sequences = state.homes,
                      .in_service = !state.out && !state.draining,
                      .slow = worker.slow,
                      .replies = state.replies,
                      .misses = state.misses,
                      .moves = state.moves});
  }
  metrics_->Update(routes);
}

}  // namespace specfabric::target
