#include "scheduler/simulation/simulator.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>
#include <variant>

#include "base/check.h"
#include "scheduler/step_profile.h"
#include "speculation/tree.h"

namespace specfabric::scheduler {
namespace {

using base::Nanos;
using base::TokenId;

Percentiles PercentilesOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<size_t>(std::lround(share * static_cast<double>(values.size() - 1)))];
  };
  return {at(0.5), at(0.9), at(0.99)};
}

SimulationOptions Placed(SimulationOptions options) {
  if (options.place != DraftPlace::kApart) options.draft.round_trip = 0;
  if (options.place == DraftPlace::kTurns) options.draft.ahead.nodes = 0;
  return options;
}

// When what was to end at `ends` does if it goes on at another speed from `now` on: `faster` times
// the present one.
Nanos EndAt(Nanos ends, double faster, Nanos now) {
  return now + static_cast<Nanos>(static_cast<double>(ends - now) / faster);
}

// A request, as its client sees it, and its draft request.
struct Client {
  Nanos arrived = 0, first = 0, last = 0;
  int32_t tokens = 0;
  std::optional<DraftId> worker;
  Nanos asked = 0;
  uint32_t round = 0;    // of the last draft request
  bool answered = true;  // or counted as a miss
};

struct Target {
  Target(const SchedulerOptions& scheduling, const DraftRouterOptions& routing)
      : scheduler(scheduling), router(routing) {}

  Scheduler scheduler;
  DraftRouter router;
  std::map<base::SequenceId, Client> live;
  std::optional<StepPlan> step;
  Nanos step_began = 0, step_ends = 0;
  Nanos busy = 0;
  int64_t steps = 0;
  std::optional<Nanos> waits_since;  // it has sequences, and runs no step
  Nanos waited = 0;
  ModelledStates states;
  Nanos states_here = 0;        // when those that were sent last have arrived
  Nanos wake = base::kForever;  // when it plans again, if nothing happens before
  uint64_t last_chosen = 0;     // the last request that arrived here
  bool touched = false;         // something has happened since it planned
};

class Simulation {
 public:
  Simulation(const SimulationOptions& options, const std::vector<Arrival>& arrivals);
  SimulationReport Run();

 private:
  struct Delivery {
    Nanos time = 0;
    DraftId worker = 0;
    ModelledDraft::Reply reply;
    bool operator>(const Delivery& other) const { return time > other.time; }
  };
  // A draft request that goes to its worker once the states of what was committed are there.
  struct Request {
    Nanos time = 0;
    DraftId worker = 0;
    DraftWanted want;
    bool operator>(const Request& other) const { return time > other.time; }
  };
  // Timers of the same time are handled in this order.
  enum class Timer { kPassEnds, kStepEnds, kWake };
  struct Timed {
    Nanos time = 0;
    Timer what = Timer::kWake;
    size_t index = 0;  // of the worker or target
    bool operator>(const Timed& other) const {
      return std::tie(time, what, index) > std::tie(other.time, other.what, other.index);
    }
  };
  template <typename T>
  using Agenda = std::priority_queue<T, std::vector<T>, std::greater<>>;

  Nanos NextEvent() const;
  void TakeEvents();
  std::vector<Timed> DueTimers();
  void Arrive(const Arrival& arrival);
  void Send(size_t worker, ModelledDraft::Reply reply);
  void Deliver(Delivery delivery);
  void Dispatch(Target* target, const std::vector<Event>& events);
  void Want(Target* target, const DraftWanted& want);
  void Ask(const Request& request);
  void EndStep(Target* target);
  void SendStates(const StepPlan& plan, const StepResult& result, Target* target);
  bool apart() const { return options_.place == DraftPlace::kApart; }
  // Whether the target has to wait for its turn, or the worker.
  bool Drafts(size_t target) const;
  bool Steps(size_t worker) const;
  // Whether both run now, on one device.
  bool Shares(size_t worker) const;
  // The worker's device begins to run a step and a pass at once, or ends to.
  void ChangeSpeed(size_t worker, bool at_once);
  void StartPass(size_t worker);
  void Count(const TokensEvent& tokens, Client* client);
  void End(Target* target, base::SequenceId id);
  void Expire(Target* target);
  void Plan(size_t index);
  SimulationReport Report() const;

  const SimulationOptions options_;
  const std::vector<Arrival>& arrivals_;
  const ModelledText text_;
  std::vector<std::unique_ptr<Target>> targets_;
  std::vector<ModelledDraft> workers_;  // DraftId - 1
  Agenda<Delivery> deliveries_;
  Agenda<Request> requests_;
  Agenda<Timed> timers_;
  std::map<base::SequenceId, size_t> home_;  // the target of each live sequence
  std::vector<Client> done_;
  size_t next_arrival_ = 0;
  base::SequenceId next_id_ = 1;
  int32_t refused_ = 0;
  Nanos now_ = 0;
  int64_t rounds_ = 0, accepted_ = 0, output_ = 0;
};

Simulation::Simulation(const SimulationOptions& options, const std::vector<Arrival>& arrivals)
    : options_(Placed(options)), arrivals_(arrivals), text_(options.acceptance, options.seed) {
  SchedulerOptions scheduling = options.scheduler;
  scheduling.vocabulary = ModelledText::kVocabulary;
  for (const int32_t rows : ProfileSizes(scheduling)) {
    const StepPlan plan = ProfileStep(scheduling, rows, 0);
    scheduling.profile.push_back({rows, rows, options.step.Of(plan)});
  }
  SPECFABRIC_CHECK(apart() || options.drafts == 0 || options.drafts == options.targets);
  workers_.reserve(options.drafts);
  for (int32_t d = 0; d < options.drafts; ++d) workers_.emplace_back(options_.draft, text_);
  for (int32_t t = 0; t < options.targets; ++t) {
    DraftRouterOptions routing = options.router;
    routing.salt = t;
    targets_.push_back(std::make_unique<Target>(scheduling, routing));
    targets_.back()->scheduler.SetDrafters(options.drafts > 0 ? 1 : 0);
    for (int32_t d = 0; d < options.drafts; ++d) {
      if (!apart() && d != t) continue;
      targets_.back()->router.OnUp(d + 1, options.draft_sessions);
    }
  }
}

Nanos Simulation::NextEvent() const {
  Nanos next = base::kForever;
  if (next_arrival_ < arrivals_.size()) next = arrivals_[next_arrival_].time;
  if (!deliveries_.empty()) next = std::min(next, deliveries_.top().time);
  if (!requests_.empty()) next = std::min(next, requests_.top().time);
  if (!timers_.empty()) next = std::min(next, timers_.top().time);
  return next;
}

std::vector<Simulation::Timed> Simulation::DueTimers() {
  std::vector<Timed> due;
  for (; !timers_.empty() && timers_.top().time <= now_; timers_.pop()) {
    due.push_back(timers_.top());
  }
  return due;
}

void Simulation::TakeEvents() {
  for (; next_arrival_ < arrivals_.size() && arrivals_[next_arrival_].time <= now_;
       ++next_arrival_) {
    Arrive(arrivals_[next_arrival_]);
  }
  const std::vector<Timed> due = DueTimers();
  for (const Timed& timed : due) {
    if (timed.what != Timer::kPassEnds || workers_[timed.index].ends() != timed.time) continue;
    if (Shares(timed.index)) ChangeSpeed(timed.index, false);
    for (ModelledDraft::Reply& reply : workers_[timed.index].EndPass()) {
      Send(timed.index, std::move(reply));
    }
  }
  while (!deliveries_.empty() && deliveries_.top().time <= now_) {
    Delivery delivery = deliveries_.top();
    deliveries_.pop();
    Deliver(std::move(delivery));
  }
  for (const Timed& timed : due) {
    if (timed.what == Timer::kPassEnds) continue;
    Target& target = *targets_[timed.index];
    if (timed.what == Timer::kStepEnds) {
      if (!target.step || target.step_ends != timed.time) continue;
      if (Shares(timed.index)) ChangeSpeed(timed.index, false);
      EndStep(&target);
    } else if (timed.time == target.wake) {
      target.touched = true;
    }
  }
  for (; !requests_.empty() && requests_.top().time <= now_; requests_.pop()) Ask(requests_.top());
  for (size_t w = 0; w < workers_.size(); ++w) {
    if (workers_[w].running() || Steps(w)) continue;
    for (ModelledDraft::Reply& reply : workers_[w].Answer()) Send(w, std::move(reply));
    if (workers_[w].wants_pass()) StartPass(w);
  }
}

void Simulation::StartPass(size_t worker) {
  workers_[worker].StartPass(now_);
  if (Shares(worker)) return ChangeSpeed(worker, true);
  timers_.push({workers_[worker].ends(), Timer::kPassEnds, worker});
}

// Timers of before are told by their times.
void Simulation::ChangeSpeed(size_t worker, bool at_once) {
  ModelledDraft& draft = workers_[worker];
  Target& target = *targets_[worker];
  const auto faster = [at_once](double speed) { return at_once ? speed : 1 / speed; };
  draft.EndAt(EndAt(draft.ends(), faster(options_.draft_speed), now_));
  target.step_ends = EndAt(target.step_ends, faster(options_.target_speed), now_);
  timers_.push({draft.ends(), Timer::kPassEnds, worker});
  timers_.push({target.step_ends, Timer::kStepEnds, worker});
}

void Simulation::EndStep(Target* target) {
  StepPlan plan = *std::exchange(target->step, std::nullopt);
  StepResult result = text_.Verify(plan);
  target->busy += now_ - target->step_began;
  target->waits_since = now_;
  if (options_.drafts > 0 && apart() && ReadsStates(options_.draft.kind)) {
    SendStates(plan, result, target);
  }
  Dispatch(target, target->scheduler.Commit(&result, now_));
  if (target->live.empty()) target->waits_since.reset();
  target->scheduler.Recycle(std::move(plan));
  target->touched = true;
}

// Those of all rows of prompts, of the last committed token and of the accepted path.
void Simulation::SendStates(const StepPlan& plan, const StepResult& result, Target* target) {
  int64_t tokens = 0;
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    const PlanSequence& part = plan.sequences[s];
    const auto accepted = static_cast<int64_t>(result.sequences[s].accepted.path.size());
    tokens += part.kind == RowsKind::kPrefill ? part.row_count : 1 + accepted;
  }
  target->states_here = target->states.Send(options_.states, tokens, now_);
}

bool Simulation::Drafts(size_t target) const {
  return options_.place == DraftPlace::kTurns && target < workers_.size() &&
         workers_[target].running();
}

bool Simulation::Steps(size_t worker) const {
  return options_.place == DraftPlace::kTurns && targets_[worker]->step.has_value();
}

bool Simulation::Shares(size_t worker) const {
  return options_.place == DraftPlace::kShared && worker < workers_.size() &&
         workers_[worker].running() && targets_[worker]->step.has_value();
}

// As in a gateway: to the target with the fewest sequences, among equals the one that was chosen
// longest ago.
void Simulation::Arrive(const Arrival& arrival) {
  size_t best = 0;
  for (size_t t = 1; t < targets_.size(); ++t) {
    const Target &a = *targets_[t], &b = *targets_[best];
    if (std::pair(a.live.size(), a.last_chosen) < std::pair(b.live.size(), b.last_chosen)) best = t;
  }
  Target& target = *targets_[best];
  SequenceRequest request;
  request.id = next_id_++;
  request.prompt.assign(std::max(1, arrival.prompt), 0);
  request.max_tokens = std::max(1, arrival.output);
  request.speculate = options_.drafts > 0;
  const base::SequenceId id = request.id;
  if (!target.scheduler.Add(std::move(request), now_).ok()) {
    ++refused_;
    return;
  }
  target.live[id].arrived = now_;
  target.last_chosen = id;
  target.touched = true;
  home_[id] = best;
}

// Half of the round trip would pass before the worker gets the request; the reply is delayed by all
// of it instead.
void Simulation::Want(Target* target, const DraftWanted& want) {
  Client& client = target->live.at(want.id);
  const auto worker = target->router.Route(want.id, want.committed, now_);
  if (!worker) return target->scheduler.OnNoDraft(want.id, want.round);
  if (client.worker && client.worker != worker) workers_[*client.worker - 1].Forget(want.id);
  client.worker = worker;
  client.asked = now_;
  client.round = want.round;
  ModelledDraft& draft = workers_[*worker - 1];
  if (!draft.Knows(want.id) && draft.sessions() >= options_.draft_sessions) {
    client.worker.reset();
    client.answered = true;
    target->router.OnBusy(*worker, want.id, now_);
    return target->scheduler.OnNoDraft(want.id, want.round);
  }
  client.answered = false;
  const Request request = {std::max(now_, target->states_here), *worker, want};
  if (request.time == now_) return Ask(request);
  requests_.push(request);
}

void Simulation::Ask(const Request& request) {
  const auto home = home_.find(request.want.id);
  if (home == home_.end()) return;
  const Client& client = targets_[home->second]->live.at(request.want.id);
  if (client.worker != request.worker || client.round != request.want.round) return;
  workers_[request.worker - 1].Ask(request.want, home->second);
}

void Simulation::Send(size_t worker, ModelledDraft::Reply reply) {
  deliveries_.push({now_ + options_.draft.round_trip, worker + 1, std::move(reply)});
}

void Simulation::Deliver(Delivery delivery) {
  const base::SequenceId id = delivery.reply.want.id;
  const auto home = home_.find(id);
  if (home == home_.end()) return;
  Target& target = *targets_[home->second];
  Client& client = target.live.at(id);
  if (client.worker != delivery.worker || client.round != delivery.reply.want.round) return;
  const Nanos latency = now_ - client.asked;
  if (std::exchange(client.answered, true)) {
    target.router.OnLateReply(delivery.worker, id, latency, now_);
  } else {
    const ModelledDraft& worker = workers_[delivery.worker - 1];
    target.router.OnReply(delivery.worker, id, latency, options_.draft_sessions - worker.sessions(),
                          now_);
  }
  const std::vector<TokenId>* committed = target.scheduler.Committed(id);
  speculation::TokenTree& tree = delivery.reply.tree;
  tree.tokens[0] = committed->back();
  target.scheduler.OnDraft(id, client.round, {.tree = std::move(tree)}, now_);
  target.touched = true;
}

// As in the target: a request past its deadline is a miss of its worker.
void Simulation::Expire(Target* target) {
  for (auto& [id, client] : target->live) {
    if (client.answered || now_ - client.asked < options_.scheduler.max_draft_wait) continue;
    client.answered = true;
    target->router.OnMiss(*client.worker, now_);
  }
}

void Simulation::Count(const TokensEvent& tokens, Client* client) {
  if (!tokens.tokens.empty()) {
    if (client->tokens == 0) client->first = now_;
    client->last = now_;
  }
  client->tokens += static_cast<int32_t>(tokens.tokens.size());
  output_ += static_cast<int64_t>(tokens.tokens.size());
  if (!tokens.round) return;
  ++rounds_;
  accepted_ += tokens.accepted;
}

void Simulation::End(Target* target, base::SequenceId id) {
  const auto it = target->live.find(id);
  const Client& client = it->second;
  if (client.worker) {
    if (!client.answered) target->router.OnAbandoned(*client.worker);
    workers_[*client.worker - 1].Forget(id);
  }
  target->router.OnEnd(id);
  done_.push_back(client);
  target->live.erase(it);
  home_.erase(id);
}

void Simulation::Dispatch(Target* target, const std::vector<Event>& events) {
  for (const Event& event : events) {
    if (const auto* want = std::get_if<DraftWanted>(&event)) {
      Want(target, *want);
    } else if (const auto* tokens = std::get_if<TokensEvent>(&event)) {
      Count(*tokens, &target->live.at(tokens->id));
    } else if (const auto* ended = std::get_if<SequenceEnded>(&event)) {
      End(target, ended->id);
    }
  }
}

void Simulation::Plan(size_t index) {
  Target& target = *targets_[index];
  if (target.step || Drafts(index) || !std::exchange(target.touched, false)) return;
  Expire(&target);
  auto planned = target.scheduler.Plan(now_);
  if (auto* plan = std::get_if<StepPlan>(&planned)) {
    const auto usual = static_cast<double>(options_.step.Of(*plan));
    const auto time =
        std::max<Nanos>(1, static_cast<Nanos>(usual * options_.noise.Factor(now_, options_.seed)));
    ++target.steps;
    if (target.waits_since)
      target.waited += now_ - *std::exchange(target.waits_since, std::nullopt);
    target.step = std::move(*plan);
    target.step_began = now_;
    target.step_ends = now_ + time;
    target.wake = base::kForever;
    if (Shares(index)) return ChangeSpeed(index, true);
    timers_.push({target.step_ends, Timer::kStepEnds, index});
  } else {
    target.wake = std::get<WaitUntil>(planned).time;
    if (target.wake != base::kForever) timers_.push({target.wake, Timer::kWake, index});
  }
}

SimulationReport Simulation::Run() {
  now_ = arrivals_.empty() ? 0 : arrivals_.front().time;
  for (;;) {
    TakeEvents();
    for (size_t t = 0; t < targets_.size(); ++t) Plan(t);
    const Nanos next = NextEvent();
    if (next == base::kForever) break;
    now_ = std::max(now_, next);
  }
  SPECFABRIC_CHECK(home_.empty());
  return Report();
}

SimulationReport Simulation::Report() const {
  SimulationReport report;
  report.requests = static_cast<int32_t>(done_.size());
  report.refused = refused_;
  report.output_tokens = output_;
  std::vector<double> ttft, tpot;
  Nanos end = 0;
  for (const Client& client : done_) {
    end = std::max(end, client.last);
    ttft.push_back(base::ToSeconds(client.first - client.arrived));
    if (client.tokens > 1) {
      tpot.push_back(base::ToSeconds(client.last - client.first) / (client.tokens - 1));
    }
  }
  report.ttft = PercentilesOf(std::move(ttft));
  report.tpot = PercentilesOf(std::move(tpot));
  if (done_.empty()) return report;
  report.duration = base::ToSeconds(end - arrivals_.front().time);
  report.tokens_per_second = static_cast<double>(output_) / report.duration;
  report.accepted_per_round = rounds_ == 0 ? 0 : static_cast<double>(accepted_) / rounds_;
  int64_t steps = 0;
  for (const auto& target : targets_) {
    report.exposed_draft += base::ToSeconds(target->waited);
    steps += target->steps;
    report.states_sent += target->states.tokens();
    report.state_bytes += target->states.bytes();
    report.target_busy += base::ToSeconds(target->busy) / report.duration / targets_.size();
    const SchedulerStats stats = target->scheduler.stats();
    report.draft_hits += stats.draft_hits;
    report.draft_misses += stats.draft_misses;
    report.draft_skips += stats.draft_skips;
    for (const DraftState& state : target->router.States()) report.draft_moves += state.moves;
  }
  report.exposed_draft /= static_cast<double>(steps);
  for (const ModelledDraft& worker : workers_) {
    report.drafts_busy += base::ToSeconds(worker.busy()) / report.duration / workers_.size();
  }
  return report;
}

}  // namespace

SimulationReport Simulate(const SimulationOptions& options, const std::vector<Arrival>& arrivals) {
  return Simulation(options, arrivals).Run();
}

}  // namespace specfabric::scheduler
