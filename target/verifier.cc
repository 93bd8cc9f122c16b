#include "target/verifier.h"

#include <algorithm>
#include <utility>

#include "speculation/sampling.h"
#include "speculation/tree.h"

namespace specfabric::target {

using scheduler::PlanSequence;
using scheduler::RowsKind;
using scheduler::StepPlan;

void Verdict::Reset(size_t logit_rows) {
  chosen.assign(logit_rows, base::kNoToken);
  logprobs.assign(logit_rows, {});
}

namespace {

// The tree that the rows of `sequence` verify, as the draft sent it.
speculation::TokenTree TreeOf(const StepPlan& plan, const PlanSequence& sequence) {
  speculation::TokenTree tree;
  const auto first = sequence.first_row, last = sequence.first_row + sequence.row_count;
  tree.tokens.assign(plan.tokens.begin() + first, plan.tokens.begin() + last);
  tree.parents.assign(plan.parents.begin() + first, plan.parents.begin() + last);
  tree.scores.assign(sequence.row_count, 0.0f);
  return tree;
}

speculation::Accepted AcceptTree(const StepPlan& plan, const PlanSequence& sequence,
                                 const Verdict& verdict) {
  const auto first = verdict.chosen.begin() + sequence.first_logit;
  return speculation::WalkCoupled(TreeOf(plan, sequence), {first, first + sequence.logit_count});
}

// Log-probabilities for the tokens emitted: the choice at the root, then at each accepted node.
void CollectTreeLogprobs(const PlanSequence& sequence, const Verdict& verdict,
                         scheduler::SequenceResult* result) {
  result->logprobs.push_back(verdict.logprobs[sequence.first_logit]);
  for (int32_t node : result->accepted.path) {
    result->logprobs.push_back(verdict.logprobs[sequence.first_logit + node]);
  }
}

void CollectPrefill(const StepPlan& plan, const PlanSequence& sequence, const Verdict& verdict,
                    scheduler::SequenceResult* result) {
  const int32_t end = sequence.first_logit + sequence.logit_count;
  for (int32_t l = sequence.first_logit; l < end; ++l) {
    if (plan.score_tokens[l] != base::kNoToken) {
      result->prompt_logprobs.push_back(verdict.logprobs[l]);
    } else if (verdict.chosen[l] != base::kNoToken) {
      result->accepted.tokens = {verdict.chosen[l]};
      if (sequence.logprobs >= 0) result->logprobs = {verdict.logprobs[l]};
    }
  }
}

}  // namespace

scheduler::StepResult Accept(const StepPlan& plan, const Verdict& verdict) {
  scheduler::StepResult step;
  step.step = plan.step;
  for (const PlanSequence& sequence : plan.sequences) {
    scheduler::SequenceResult result;
    result.id = sequence.id;
    if (sequence.kind == RowsKind::kTree) {
      result.accepted = AcceptTree(plan, sequence, verdict);
      if (sequence.logprobs >= 0) CollectTreeLogprobs(sequence, verdict, &result);
    } else {
      CollectPrefill(plan, sequence, verdict, &result);
    }
    step.sequences.push_back(std::move(result));
  }
  return step;
}

namespace {

// Tokens of the output before the one that a logit row is about.
int32_t OutputSize(const StepPlan& plan, const PlanSequence& sequence, int32_t logit) {
  return plan.positions[plan.logit_rows[logit]] + 1 - sequence.prompt_size;
}

// The guesses from the last committed token, itself not among them, to a row; in no order. A
// prefill's rows are all committed.
void PathTo(const StepPlan& plan, const PlanSequence& sequence, int32_t logit,
            std::vector<base::TokenId>* path) {
  path->clear();
  if (sequence.kind != RowsKind::kTree) return;
  for (int32_t row = plan.logit_rows[logit]; row != sequence.first_row;
       row = sequence.first_row + plan.parents[row]) {
    path->push_back(plan.tokens[row]);
  }
}

}  // namespace

void RankVerifier::SplitRows(const StepPlan& plan) {
  sharded_.clear();
  whole_.clear();
  for (int32_t s = 0; s < static_cast<int32_t>(plan.sequences.size()); ++s) {
    const PlanSequence& sequence = plan.sequences[s];
    const int32_t end = sequence.first_logit + sequence.logit_count;
    for (int32_t l = sequence.first_logit; l < end; ++l) {
      const bool scored = plan.score_tokens[l] != base::kNoToken;
      const bool chooses =
          sequence.samples && !scored && (sequence.kind == RowsKind::kTree || l == end - 1);
      if (!chooses && !scored) continue;
      const bool filters = chooses && !sequence.sampling.greedy() && sequence.sampling.filtered();
      const bool changes = chooses && sequence.rules.ChangeAt(OutputSize(plan, sequence, l));
      const bool needs_row = scored || sequence.logprobs >= 0 || filters || changes;
      (needs_row ? whole_ : sharded_).push_back({s, l, chooses});
    }
  }
}

absl::Span<const float> RankVerifier::Noise(const base::SamplingParams& sampling, int32_t sequence,
                                            int32_t position, base::TokenId first, int32_t width) {
  if (sampling.greedy()) return {};
  if (noise_used_ > 0 && noise_[0].sequence != sequence) noise_used_ = 0;
  for (size_t i = 0; i < noise_used_; ++i) {
    if (noise_[i].position == position) return noise_[i].values;
  }
  if (noise_used_ == noise_.size()) noise_.emplace_back();
  NoiseRow& row = noise_[noise_used_++];
  row.sequence = sequence;
  row.position = position;
  row.values.resize(width);
  speculation::GumbelNoise(sampling.seed, static_cast<uint32_t>(position), first,
                           absl::MakeSpan(row.values));
  return row.values;
}

void RankVerifier::ChooseSharded(const StepPlan& plan, const model::LogitShard& logits,
                                 Verdict* verdict) {
  pairs_.clear();
  noise_used_ = 0;
  for (const RowTask& task : sharded_) {
    const PlanSequence& sequence = plan.sequences[task.sequence];
    // A row's logits are about the token after it.
    const int32_t position = plan.positions[plan.logit_rows[task.logit]] + 1;
    const auto noise =
        Noise(sequence.sampling, task.sequence, position, logits.first, logits.width);
    pairs_.push_back(speculation::PerturbedArgMax(logits.row(task.logit), noise,
                                                  sequence.sampling.temperature, logits.first));
  }
  if (communicator_->size() > 1) communicator_->AllReduceBest(absl::MakeSpan(pairs_));
  if (communicator_->rank() != 0) return;
  for (size_t i = 0; i < sharded_.size(); ++i) {
    verdict->chosen[sharded_[i].logit] = pairs_[i].token;
  }
}

absl::Span<const float> RankVerifier::Changed(const StepPlan& plan, const RowTask& task,
                                              absl::Span<const float> row) {
  const PlanSequence& sequence = plan.sequences[task.sequence];
  const int32_t output_size = OutputSize(plan, sequence, task.logit);
  if (!sequence.rules.ChangeAt(output_size)) return row;
  if (changer_sequence_ != task.sequence) {
    changer_.Open(sequence.rules, sequence.counts);
    changer_sequence_ = task.sequence;
  }
  PathTo(plan, sequence, task.logit, &path_);
  return changer_.Change(row, path_, output_size);
}

void RankVerifier::FinishRow(const StepPlan& plan, const RowTask& task, absl::Span<const float> row,
                             Verdict* verdict) {
  const PlanSequence& sequence = plan.sequences[task.sequence];
  base::TokenId token = plan.score_tokens[task.logit];
  if (task.chooses) {
    const int32_t position = plan.positions[plan.logit_rows[task.logit]] + 1;
    const auto noise = Noise(sequence.sampling, task.sequence, position, 0, vocabulary_);
    token = speculation::SampleRow(Changed(plan, task, row), noise, sequence.sampling);
    verdict->chosen[task.logit] = token;
  }
  if (!task.chooses || sequence.logprobs >= 0) {
    verdict->logprobs[task.logit] =
        speculation::RowLogprobs(row, token, std::max(0, sequence.logprobs));
  }
}

void RankVerifier::ChooseWhole(const StepPlan& plan, const model::LogitShard& logits,
                               Verdict* verdict) {
  noise_used_ = 0;
  changer_sequence_ = -1;
  if (communicator_->size() == 1) {
    for (const RowTask& task : whole_) FinishRow(plan, task, logits.row(task.logit), verdict);
    return;
  }
  shard_rows_.clear();
  owners_.clear();
  for (const RowTask& task : whole_) {
    const auto row = logits.row(task.logit);
    shard_rows_.insert(shard_rows_.end(), row.begin(), row.end());
    // Sequences are spread over the ranks; all rows of one stay together.
    const uint64_t id = plan.sequences[task.sequence].id;
    owners_.push_back(static_cast<int>(id % communicator_->size()));
  }
  communicator_->GatherRows(shard_rows_, logits.width, owners_, &whole_rows_);
  size_t mine = 0;
  for (size_t i = 0; i < whole_.size(); ++i) {
    if (owners_[i] != communicator_->rank()) continue;
    const float* row = whole_rows_.data() + mine++ * vocabulary_;
    FinishRow(plan, whole_[i], {row, static_cast<size_t>(vocabulary_)}, verdict);
  }
}

void RankVerifier::Verify(const StepPlan& plan, const model::LogitShard& logits, Verdict* verdict) {
  SplitRows(plan);
  // The same plan on every rank splits alike, so all take part in the same collectives.
  if (!sharded_.empty()) ChooseSharded(plan, logits, verdict);
  if (!whole_.empty()) ChooseWhole(plan, logits, verdict);
}

}  // namespace specfabric::target
