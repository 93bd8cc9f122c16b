#include "scheduler/simulation/modelled_draft.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace specfabric::scheduler {
namespace {

constexpr int32_t kMostOfARound = 16;  // tokens; what has more to read is a prompt

}  // namespace

void ModelledDraft::Ask(const DraftWanted& want, uint64_t target) {
  Session& session = sessions_[want.id];
  Job job = {want,
             target,
             std::max(0, want.committed - session.known),
             speculation::TreeGrower(cost_.tree.Shallower(want.max_depth), 0, want.max_nodes,
                                     static_cast<float>(want.cost_per_row)),
             {}};
  rounds_[target].Join(want.id, static_cast<float>(want.cost_per_second));
  session.known = want.committed;
  session.levels = std::max(1, cost_.tree.Shallower(want.max_depth).Depth());
  if (goes_ahead()) {
    session.ahead.Advance(text_, want.id, want.committed);
    Note(true, &session);
    job.places = {session.ahead.root()};
    if (session.ahead.Ran(session.ahead.root())) job.prefix = 0;
  }
  waiting_.push_back(std::move(job));
}

void ModelledDraft::Forget(uint64_t sequence) {
  const auto it = sessions_.find(sequence);
  if (it == sessions_.end()) return;
  going_ahead_ -= it->second.going_ahead;
  sessions_.erase(it);
}

void ModelledDraft::Note(bool asked, Session* session) {
  session->asked = asked;
  going_ahead_ -= session->going_ahead;
  session->going_ahead = !asked && session->ahead.any();
  going_ahead_ += session->going_ahead;
}

std::vector<ModelledDraft::Reply> ModelledDraft::Answer() {
  if (!goes_ahead() || waiting_.empty()) return {};
  for (Job& job : waiting_) ExpandKnown(&job);
  std::move(waiting_.begin(), waiting_.end(), std::back_inserter(jobs_));
  waiting_.clear();
  StopUnprofitableGrowth();
  return TakeDone();
}

base::Nanos ModelledDraft::TimeOf(int64_t rows) const {
  if (!cost_.measured.empty()) return Interpolate(cost_.measured, rows);
  const auto arithmetic = static_cast<base::Nanos>(cost_.row_ns * static_cast<double>(rows));
  return std::max<base::Nanos>(1, std::max(cost_.weights, arithmetic));
}

void ModelledDraft::StartPass(base::Nanos now) {
  std::move(waiting_.begin(), waiting_.end(), std::back_inserter(jobs_));
  waiting_.clear();
  if (jobs_.empty()) return StartAhead(now);
  int64_t rows = 0;
  reads_prompts_ = false;
  for (const Job& job : jobs_) {
    reads_prompts_ = reads_prompts_ || job.prefix > kMostOfARound;
    rows += job.prefix > 0 ? job.prefix : static_cast<int64_t>(job.grower.Frontier().size());
    if (one_pass()) rows += cost_.tree.Shallower(job.want.max_depth).Depth() - 1;  // masks
  }
  began_ = now;
  ends_ = now + TimeOf(rows);
}

// Starts a pass over the likeliest nodes of all sessions.
void ModelledDraft::StartAhead(base::Nanos now) {
  std::vector<std::pair<uint64_t, Session*>> going;
  for (auto& [id, session] : sessions_) {
    if (session.going_ahead) going.emplace_back(id, &session);
  }
  const auto best = [](const auto& entry) {
    return entry.second->ahead.any() ? entry.second->ahead.best() : 0;
  };
  int64_t most = std::max<int64_t>(cost_.ahead.rows, static_cast<int64_t>(going.size()));
  int32_t levels = 0;
  for (const auto& entry : going) levels = std::max(levels, entry.second->levels);
  if (one_pass()) most *= 1 + levels;
  int64_t rows = 0;
  while (rows < most) {
    const auto likeliest =
        std::max_element(going.begin(), going.end(),
                         [&](const auto& a, const auto& b) { return best(a) < best(b); });
    if (likeliest == going.end() || !likeliest->second->ahead.any()) break;
    run_ahead_.emplace_back(likeliest->first, likeliest->second->ahead.Take());
    rows += one_pass() ? 1 + likeliest->second->levels : 1;  // with masks
  }
  ends_ = now + TimeOf(rows);
}

std::vector<ModelledDraft::Reply> ModelledDraft::EndPass() {
  const base::Nanos pass = std::exchange(ends_, 0) - began_;
  for (const auto& [id, node] : std::exchange(run_ahead_, {})) {
    const auto it = sessions_.find(id);
    if (it == sessions_.end()) continue;
    Session& session = it->second;
    if (one_pass()) {
      session.ahead.NoteRun(node);
    } else {
      session.ahead.OnRun(text_, id, node);
    }
    Note(session.asked, &session);
  }
  if (jobs_.empty()) return {};
  if (!reads_prompts_) pass_time_.Note(pass);
  busy_ += pass;
  for (Job& job : jobs_) Expand(&job);
  StopUnprofitableGrowth();
  return TakeDone();
}

std::vector<ModelledDraft::Reply> ModelledDraft::TakeDone() {
  std::vector<Reply> replies;
  std::vector<Job> left;
  for (Job& job : jobs_) {
    if (!job.grower.complete()) {
      left.push_back(std::move(job));
      continue;
    }
    rounds_.at(job.target).Leave(job.want.id, true);
    const auto it = sessions_.find(job.want.id);
    if (goes_ahead() && it != sessions_.end()) {
      if (job.want.ahead) PlanAhead(&job, &it->second);
      Note(false, &it->second);
    }
    replies.push_back({job.want, std::move(job.grower).Take()});
  }
  jobs_ = std::move(left);
  return replies;
}

void ModelledDraft::PlanAhead(Job* job, Session* session) const {
  const uint64_t sequence = job->want.id;
  if (!one_pass()) return session->ahead.Start(text_, sequence, cost_.ahead);
  AheadCost cost = cost_.ahead;
  cost.least_chance *= 1 + session->levels;
  session->ahead.Clear(cost);
  const speculation::TokenTree& tree = job->grower.tree();
  std::vector<int> children(tree.size(), 0);
  for (int32_t node = 1; node < tree.size(); ++node) ++children[tree.parents[node]];
  for (int32_t node = 0; node < tree.size(); ++node) {
    const ModelledAhead::Node parent = PlaceOf(node, job);
    session->ahead.OfferRoots(text_, sequence, parent, children[node]);
  }
}

void ModelledDraft::StopUnprofitableGrowth() {
  if (one_pass()) return;  // all levels come with the first

  std::map<uint64_t, speculation::GrowthRound::Pass> passes;  // by target
  for (const Job& job : jobs_) {
    if (job.grower.complete()) continue;
    passes[job.target].Add(job.grower, goes_ahead() && job.want.ahead);
  }
  for (const auto& [target, pass] : passes) {
    if (rounds_.at(target).Pays(pass, pass_time_.seconds())) continue;
    for (Job& job : jobs_) {
      if (job.target == target) job.grower.Stop();
    }
  }
}

const ModelledAhead::Node& ModelledDraft::PlaceOf(int32_t node, Job* job) const {
  const speculation::TokenTree& tree = job->grower.tree();
  for (auto next = static_cast<int32_t>(job->places.size()); next <= node; ++next) {
    const ModelledAhead::Node parent = job->places[tree.parents[next]];
    const int index = tree.tokens[next] - ModelledText::DraftToken(0);
    job->places.push_back(ModelledAhead::Child(text_, job->want.id, parent, index));
  }
  return job->places[node];
}

void ModelledDraft::ExpandNode(int32_t node, Job* job) const {
  const int32_t depth = speculation::DepthOf(job->grower.tree(), node);
  std::vector<sampling::ScoredToken> tokens;
  std::vector<float> logprobs;
  for (int index = 0; index < job->grower.Width(depth); ++index) {
    const double chance = text_.Chance(job->want.id, job->want.committed + depth, index);
    logprobs.push_back(static_cast<float>(std::log(chance)));
    tokens.push_back({ModelledText::DraftToken(index), logprobs.back()});
  }
  job->grower.Expand(node, tokens, logprobs);
}

void ModelledDraft::ExpandKnown(Job* job) const {
  const auto it = sessions_.find(job->want.id);
  if (!goes_ahead() || it == sessions_.end() || job->prefix > 0) return;
  if (one_pass()) {
    if (it->second.ahead.Ran(job->places[0])) ExpandWhole(job);
    return;
  }
  for (bool grown = true; grown;) {
    grown = false;
    for (int32_t node : job->grower.Frontier()) {
      if (!job->grower.Expandable(node) || !it->second.ahead.Ran(PlaceOf(node, job))) continue;
      ExpandNode(node, job);
      grown = true;
    }
    if (grown) job->grower.Refill();
  }
}

void ModelledDraft::ExpandFrontier(Job* job) const {
  for (int32_t node : job->grower.Frontier()) {
    if (job->grower.Expandable(node)) ExpandNode(node, job);
  }
}

void ModelledDraft::ExpandWhole(Job* job) const {
  while (!job->grower.complete()) ExpandFrontier(job);
}

void ModelledDraft::Expand(Job* job) {
  // A prefill yields the root's children too, as in a real draft.
  job->prefix = 0;
  if (one_pass()) return ExpandWhole(job);
  const auto it = sessions_.find(job->want.id);
  if (goes_ahead() && it != sessions_.end()) {
    for (int32_t node : job->grower.Frontier()) it->second.ahead.NoteRun(PlaceOf(node, job));
  }
  ExpandFrontier(job);
  ExpandKnown(job);
}

}  // namespace specfabric::scheduler
