#include "scheduler/simulator.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <unordered_map>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/hash.h"
#include "speculation/tree.h"

namespace specfabric::scheduler {
namespace {

using base::Nanos;
using base::TokenId;
using speculation::TokenTree;

// Guess number `rank` under any node has token 1 + rank; a text that no guess hits has token 0.
constexpr int32_t kVocabulary = 1 + speculation::kMaxDraftNodes;

double Uniform(uint64_t seed, uint64_t sequence, uint64_t position, uint64_t what) {
  const uint64_t bits =
      base::Mix64(seed ^ base::Mix64(sequence ^ base::Mix64(position ^ base::Mix64(what))));
  return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
}

// What is true of the texts.
class Truth {
 public:
  Truth(const Acceptance& acceptance, uint64_t seed) : acceptance_(acceptance), seed_(seed) {}

  // The chance that the guess of this rank is right.
  double Chance(base::SequenceId id, int32_t position, int rank) const {
    const double shift = acceptance_.spread * (2 * Uniform(seed_, id, position, 0) - 1);
    const double mean =
        position < acceptance_.shift_position ? acceptance_.first : acceptance_.first_after;
    const double first = std::clamp(mean + shift, 0.01, 0.99);
    if (rank == 0) return first;
    return (1 - first) * acceptance_.further * std::pow(1 - acceptance_.further, rank - 1);
  }
  TokenId Token(base::SequenceId id, int32_t position) const {
    double left = Uniform(seed_, id, position, 1);
    for (int rank = 0; rank < 16; ++rank) {
      left -= Chance(id, position, rank);
      if (left < 0) return 1 + rank;
    }
    return 0;
  }

 private:
  const Acceptance acceptance_;
  const uint64_t seed_;
};

// A worker grows the trees it was asked for side by side: one pass takes the missing prefix or the
// frontier of each.
class Worker {
 public:
  struct Job {
    DraftWanted want;
    int32_t prefix = 0;  // tokens that it must read first
    speculation::TreeGrower grower;
  };
  struct Reply {
    DraftWanted want;
    TokenTree tree;
  };

  Worker(const DraftCost& cost, const Truth& truth) : cost_(cost), truth_(truth) {}

  void Ask(const DraftWanted& want) {
    int32_t& known = known_[want.id];
    waiting_.push_back(
        {want, std::max(0, want.committed - known),
         speculation::TreeGrower(cost_.tree.Shallower(want.max_depth), 0, want.max_nodes,
                                 static_cast<float>(want.row_price))});
    round_.Join(static_cast<float>(want.second_price));
    known = want.committed;
  }
  void Forget(base::SequenceId id) { known_.erase(id); }
  int32_t sessions() const { return static_cast<int32_t>(known_.size()); }

  bool running() const { return ends_ != 0; }
  bool idle() const { return waiting_.empty() && jobs_.empty(); }
  Nanos ends() const { return ends_; }
  Nanos busy() const { return busy_; }

  void StartPass(Nanos now) {
    std::move(waiting_.begin(), waiting_.end(), std::back_inserter(jobs_));
    waiting_.clear();
    int64_t rows = 0;
    for (const Job& job : jobs_) {
      rows += job.prefix > 0 ? job.prefix : static_cast<int64_t>(job.grower.Frontier().size());
    }
    const Nanos arithmetic = static_cast<Nanos>(cost_.row_ns * static_cast<double>(rows));
    const Nanos time = std::max<Nanos>(1, std::max(cost_.weights, arithmetic));
    busy_ += time;
    pass_ = time;
    ends_ = now + time;
  }

  std::vector<Reply> EndPass() {
    ends_ = 0;
    std::vector<Reply> replies;
    std::vector<Job> left;
    float gain = 0;
    for (Job& job : jobs_) {
      Expand(&job);
      gain += job.grower.Gain();
    }
    const bool pays = round_.Pays(gain, base::ToSeconds(pass_));
    for (Job& job : jobs_) {
      if (!pays) job.grower.Stop();
      if (job.grower.Frontier().empty()) {
        round_.Leave(static_cast<float>(job.want.second_price), true);
        replies.push_back({job.want, std::move(job.grower).Take()});
      } else {
        left.push_back(std::move(job));
      }
    }
    jobs_ = std::move(left);
    return replies;
  }

 private:
  void Expand(Job* job) {
    // Reading the prefix ends with the root's own candidates, as in a real draft.
    job->prefix = 0;
    for (int32_t node : job->grower.Frontier()) {
      if (!job->grower.Expandable(node)) continue;
      int32_t depth = 0;
      const TokenTree& tree = job->grower.tree();
      for (int32_t a = node; a > 0; a = tree.parents[a]) ++depth;
      std::vector<speculation::ScoredToken> tokens;
      std::vector<float> logprobs;
      for (int rank = 0; rank < job->grower.Width(depth); ++rank) {
        const double chance = truth_.Chance(job->want.id, job->want.committed + depth, rank);
        logprobs.push_back(static_cast<float>(std::log(chance)));
        tokens.push_back({1 + rank, logprobs.back()});
      }
      job->grower.Expand(node, tokens, logprobs);
    }
  }

  const DraftCost& cost_;
  const Truth& truth_;
  std::vector<Job> waiting_, jobs_;
  speculation::GrowthRound round_;
  std::unordered_map<base::SequenceId, int32_t> known_;
  Nanos ends_ = 0;
  Nanos pass_ = 0;  // of the last
  Nanos busy_ = 0;
};

Percentiles PercentilesOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
  };
  return {at(0.5), at(0.9), at(0.99)};
}

class Simulation {
 public:
  Simulation(const SimulationOptions& options, const std::vector<Arrival>& arrivals)
      : options_(options),
        arrivals_(arrivals),
        truth_(options.acceptance, options.seed),
        scheduler_(WithVocabulary(options.scheduler)),
        router_(options.router) {
    for (int32_t d = 0; d < options.drafts; ++d) {
      workers_.emplace_back(options_.draft, truth_);
      router_.OnUp(d + 1, options.draft_sessions);
    }
  }

  SimulationReport Run();

 private:
  struct Client {
    Nanos arrived = 0, first = 0, last = 0;
    int32_t tokens = 0;
    std::optional<DraftId> worker;
    Nanos asked = 0;
    uint32_t round = 0;    // that was asked for
    bool answered = true;  // or counted as a miss
  };
  struct Delivery {
    Nanos time = 0;
    DraftId worker = 0;
    Worker::Reply reply;
    bool operator>(const Delivery& other) const { return time > other.time; }
  };

  static SchedulerOptions WithVocabulary(SchedulerOptions options) {
    options.vocabulary = kVocabulary;
    return options;
  }
  Nanos NextEvent() const;
  void TakeEvents();
  void Arrive(const Arrival& arrival);
  void Deliver(Delivery delivery);
  void Dispatch(const std::vector<Event>& events);
  void Want(const DraftWanted& want);
  void Expire();
  StepResult Execute(const StepPlan& plan) const;
  SimulationReport Report() const;

  const SimulationOptions options_;
  const std::vector<Arrival>& arrivals_;
  const Truth truth_;
  Scheduler scheduler_;
  DraftRouter router_;
  std::vector<Worker> workers_;  // DraftId - 1
  std::priority_queue<Delivery, std::vector<Delivery>, std::greater<>> deliveries_;
  std::map<base::SequenceId, Client> live_;
  std::vector<Client> done_;
  size_t next_arrival_ = 0;
  base::SequenceId next_id_ = 1;
  int32_t refused_ = 0;
  std::optional<StepPlan> step_;
  Nanos step_ends_ = 0;
  Nanos target_busy_ = 0;
  Nanos now_ = 0;
  int64_t rounds_ = 0, accepted_ = 0, output_ = 0;
};

Nanos Simulation::NextEvent() const {
  Nanos next = base::kForever;
  if (next_arrival_ < arrivals_.size()) next = arrivals_[next_arrival_].time;
  if (!deliveries_.empty()) next = std::min(next, deliveries_.top().time);
  for (const Worker& worker : workers_) {
    if (worker.running()) next = std::min(next, worker.ends());
  }
  if (step_) next = std::min(next, step_ends_);
  return next;
}

void Simulation::TakeEvents() {
  for (; next_arrival_ < arrivals_.size() && arrivals_[next_arrival_].time <= now_;
       ++next_arrival_) {
    Arrive(arrivals_[next_arrival_]);
  }
  for (size_t w = 0; w < workers_.size(); ++w) {
    Worker& worker = workers_[w];
    if (worker.running() && worker.ends() <= now_) {
      for (Worker::Reply& reply : worker.EndPass()) {
        deliveries_.push({now_ + options_.draft.round_trip, w + 1, std::move(reply)});
      }
    }
  }
  while (!deliveries_.empty() && deliveries_.top().time <= now_) {
    Delivery delivery = deliveries_.top();
    deliveries_.pop();
    Deliver(std::move(delivery));
  }
  if (step_ && step_ends_ <= now_) {
    const StepPlan plan = *std::exchange(step_, std::nullopt);
    Dispatch(scheduler_.Commit(Execute(plan), now_));
  }
  for (Worker& worker : workers_) {
    if (!worker.running() && !worker.idle()) worker.StartPass(now_);
  }
}

void Simulation::Arrive(const Arrival& arrival) {
  SequenceRequest request;
  request.id = next_id_++;
  request.prompt.assign(std::max(1, arrival.prompt), 0);
  request.max_tokens = std::max(1, arrival.output);
  request.speculate = options_.drafts > 0;
  const base::SequenceId id = request.id;
  if (!scheduler_.Add(std::move(request), now_).ok()) {
    ++refused_;
    return;
  }
  live_[id].arrived = now_;
}

// Half of the round trip passes before the worker knows: the reply carries all of it.
void Simulation::Want(const DraftWanted& want) {
  Client& client = live_.at(want.id);
  const auto worker = router_.Route(want.id, now_);
  if (!worker) return scheduler_.OnNoDraft(want.id, want.round);
  if (client.worker && client.worker != worker) workers_[*client.worker - 1].Forget(want.id);
  client.worker = worker;
  client.asked = now_;
  client.round = want.round;
  client.answered = false;
  workers_[*worker - 1].Ask(want);
}

void Simulation::Deliver(Delivery delivery) {
  const auto it = live_.find(delivery.reply.want.id);
  if (it == live_.end()) return;
  Client& client = it->second;
  if (client.worker != delivery.worker || client.round != delivery.reply.want.round) return;
  const Nanos latency = now_ - client.asked;
  if (std::exchange(client.answered, true)) {
    router_.OnLateReply(delivery.worker, latency);
  } else {
    const Worker& worker = workers_[delivery.worker - 1];
    router_.OnReply(delivery.worker, latency, options_.draft_sessions - worker.sessions());
  }
  const std::vector<TokenId>* committed = scheduler_.Committed(it->first);
  TokenTree& tree = delivery.reply.tree;
  tree.tokens[0] = committed->back();
  scheduler_.OnDraft(it->first, client.round, {.tree = std::move(tree)}, now_);
}

// A request that is past its deadline is a miss of its worker, as in the target.
void Simulation::Expire() {
  for (auto& [id, client] : live_) {
    if (client.answered || now_ - client.asked < options_.scheduler.max_draft_wait) continue;
    client.answered = true;
    router_.OnMiss(*client.worker, now_);
  }
}

StepResult Simulation::Execute(const StepPlan& plan) const {
  StepResult result;
  result.step = plan.step;
  for (const PlanSequence& part : plan.sequences) {
    SequenceResult found;
    found.id = part.id;
    const auto choice = [&](int32_t row) {
      return truth_.Token(part.id, plan.positions[part.first_row + row] + 1);
    };
    if (part.kind == RowsKind::kPrefill) {
      if (part.samples) found.accepted.tokens = {choice(part.row_count - 1)};
    } else {
      TokenTree tree;
      std::vector<TokenId> chosen;
      for (int32_t row = 0; row < part.row_count; ++row) {
        tree.tokens.push_back(plan.tokens[part.first_row + row]);
        tree.parents.push_back(plan.parents[part.first_row + row]);
        tree.scores.push_back(0);
        chosen.push_back(choice(row));
      }
      found.accepted = speculation::WalkCoupled(tree, chosen);
    }
    result.sequences.push_back(std::move(found));
  }
  return result;
}

void Simulation::Dispatch(const std::vector<Event>& events) {
  for (const Event& event : events) {
    if (const auto* want = std::get_if<DraftWanted>(&event)) {
      Want(*want);
    } else if (const auto* tokens = std::get_if<TokensEvent>(&event)) {
      Client& client = live_.at(tokens->id);
      if (client.tokens == 0 && !tokens->tokens.empty()) client.first = now_;
      if (!tokens->tokens.empty()) client.last = now_;
      client.tokens += static_cast<int32_t>(tokens->tokens.size());
      output_ += static_cast<int64_t>(tokens->tokens.size());
      if (tokens->round) {
        ++rounds_;
        accepted_ += tokens->accepted;
      }
    } else if (const auto* ended = std::get_if<SequenceEnded>(&event)) {
      const auto it = live_.find(ended->id);
      Client& client = it->second;
      if (client.worker) {
        if (!client.answered) router_.OnAbandoned(*client.worker);
        workers_[*client.worker - 1].Forget(ended->id);
      }
      router_.OnEnd(ended->id);
      done_.push_back(client);
      live_.erase(it);
    }
  }
}

SimulationReport Simulation::Run() {
  now_ = arrivals_.empty() ? 0 : arrivals_.front().time;
  for (;;) {
    TakeEvents();
    Nanos wake = base::kForever;
    if (!step_) {
      Expire();
      auto planned = scheduler_.Plan(now_);
      if (auto* plan = std::get_if<StepPlan>(&planned)) {
        const Nanos time = std::max<Nanos>(1, options_.step.Of(*plan));
        target_busy_ += time;
        step_ends_ = now_ + time;
        step_ = std::move(*plan);
      } else {
        wake = std::get<WaitUntil>(planned).time;
      }
    }
    const Nanos next = std::min(NextEvent(), wake);
    if (next == base::kForever) break;
    now_ = std::max(now_, next);
  }
  SPECFABRIC_CHECK(live_.empty());
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
  report.target_busy = base::ToSeconds(target_busy_) / report.duration;
  for (const Worker& worker : workers_) {
    report.drafts_busy += base::ToSeconds(worker.busy()) / report.duration / workers_.size();
  }
  report.draft_hits = scheduler_.stats().draft_hits;
  report.draft_misses = scheduler_.stats().draft_misses;
  report.draft_skips = scheduler_.stats().draft_skips;
  return report;
}

}  // namespace

Nanos StepCost::Of(const StepPlan& plan) const {
  double context = 0;
  for (const PlanSequence& part : plan.sequences) context += part.kv_len + part.row_count;
  const auto rows = static_cast<Nanos>(row_ns * plan.rows());
  return fixed + std::max(weights, rows) + static_cast<Nanos>(context_ns * context);
}

SimulationReport Simulate(const SimulationOptions& options, const std::vector<Arrival>& arrivals) {
  return Simulation(options, arrivals).Run();
}

}  // namespace specfabric::scheduler
