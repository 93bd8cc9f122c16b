#include "scheduler/modelled_draft.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace specfabric::scheduler {

void ModelledDraft::Ask(const DraftWanted& want, uint64_t target) {
  int32_t& known = known_[want.id];
  waiting_.push_back({want, target, std::max(0, want.committed - known),
                      speculation::TreeGrower(cost_.tree.Shallower(want.max_depth), 0,
                                              want.max_nodes, static_cast<float>(want.row_price))});
  rounds_[target].Join(want.id, static_cast<float>(want.second_price));
  known = want.committed;
}

void ModelledDraft::StartPass(base::Nanos now) {
  std::move(waiting_.begin(), waiting_.end(), std::back_inserter(jobs_));
  waiting_.clear();
  int64_t rows = 0;
  for (const Job& job : jobs_) {
    rows += job.prefix > 0 ? job.prefix : static_cast<int64_t>(job.grower.Frontier().size());
  }
  const auto arithmetic = static_cast<base::Nanos>(cost_.row_ns * static_cast<double>(rows));
  const base::Nanos time = std::max<base::Nanos>(1, std::max(cost_.weights, arithmetic));
  busy_ += time;
  pass_ = time;
  ends_ = now + time;
}

std::vector<ModelledDraft::Reply> ModelledDraft::EndPass() {
  ends_ = 0;
  std::vector<Reply> replies;
  std::vector<Job> left;
  for (Job& job : jobs_) Expand(&job);
  StopWhatDoesNotPay();
  for (Job& job : jobs_) {
    if (job.grower.Frontier().empty()) {
      rounds_.at(job.target).Leave(job.want.id, true);
      replies.push_back({job.want, std::move(job.grower).Take()});
    } else {
      left.push_back(std::move(job));
    }
  }
  jobs_ = std::move(left);
  return replies;
}

void ModelledDraft::StopWhatDoesNotPay() {
  std::map<uint64_t, float> gains;
  for (const Job& job : jobs_) gains[job.target] += job.grower.Gain();
  for (const auto& [target, gain] : gains) {
    if (rounds_.at(target).Pays(gain, base::ToSeconds(pass_))) continue;
    for (Job& job : jobs_) {
      if (job.target == target) job.grower.Stop();
    }
  }
}

void ModelledDraft::Expand(Job* job) const {
  // Reading the prefix ends with the root's own candidates, as in a real draft.
  job->prefix = 0;
  for (int32_t node : job->grower.Frontier()) {
    if (!job->grower.Expandable(node)) continue;
    const int32_t depth = speculation::DepthOf(job->grower.tree(), node);
    std::vector<speculation::ScoredToken> tokens;
    std::vector<float> logprobs;
    for (int rank = 0; rank < job->grower.Width(depth); ++rank) {
      const double chance = text_.Chance(job->want.id, job->want.committed + depth, rank);
      logprobs.push_back(static_cast<float>(std::log(chance)));
      tokens.push_back({ModelledText::Guess(rank), logprobs.back()});
    }
    job->grower.Expand(node, tokens, logprobs);
  }
}

}  // namespace specfabric::scheduler
