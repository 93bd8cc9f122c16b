#include "target/verifier.h"

#include <algorithm>
#include <utility>

#include "speculation/sampling.h"
#include "speculation/tree.h"

namespace specfabric::target {

using scheduler::PlanSequence;
using scheduler::RowsKind;
using scheduler::StepPlan;

void Verdict::Reset(const StepPlan& plan) {
  chosen.assign(plan.logit_rows.size(), base::kNoToken);
  logprobs.assign(plan.logit_rows.size(), {});
  accepted.assign(plan.sequences.size(), {});
}

bool ReadsWeights(const PlanSequence& sequence) {
  return sequence.kind == RowsKind::kTree && sequence.row_count > 1 &&
         speculation::NeedsDraftRows(sequence.coupling, sequence.draw);
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
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    const PlanSequence& sequence = plan.sequences[s];
    scheduler::SequenceResult result;
    result.id = sequence.id;
    if (sequence.kind == RowsKind::kTree) {
      const bool decided = !verdict.accepted[s].tokens.empty();
      result.accepted = decided ? verdict.accepted[s] : AcceptTree(plan, sequence, verdict);
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

// Whether the rows that choose are to be seen whole, from the first of them on.
bool NeedsWholeRows(const StepPlan& plan, const PlanSequence& sequence, int32_t logit) {
  const bool filters = !sequence.sampling.greedy() && sequence.sampling.filtered();
  return filters || sequence.logprobs >= 0 ||
         sequence.rules.ChangeAt(OutputSize(plan, sequence, logit));
}

bool Weighs(const PlanSequence& sequence) {
  return sequence.row_count > 1 && sequence.coupling != speculation::Coupling::kCoupled;
}

}  // namespace

void RankVerifier::AddTree(const StepPlan& plan, int32_t s, bool on_device) {
  const PlanSequence& sequence = plan.sequences[s];
  const bool walks = communicator_->size() == 1 && !on_device;
  // Rules that change no row at the root change none below it.
  if (walks || Weighs(sequence) || NeedsWholeRows(plan, sequence, sequence.first_logit)) {
    return trees_.push_back(s);
  }
  for (int32_t i = 0; i < sequence.logit_count; ++i) {
    sharded_.push_back({s, sequence.first_logit + i, true});
  }
}

void RankVerifier::AddPrefill(const StepPlan& plan, int32_t s) {
  const PlanSequence& sequence = plan.sequences[s];
  const int32_t end = sequence.first_logit + sequence.logit_count;
  for (int32_t l = sequence.first_logit; l < end; ++l) {
    if (plan.score_tokens[l] != base::kNoToken) {
      whole_.push_back({s, l, false});
    } else if (sequence.samples && l == end - 1) {
      (NeedsWholeRows(plan, sequence, l) ? whole_ : sharded_).push_back({s, l, true});
    }
  }
}

void RankVerifier::SplitWork(const StepPlan& plan, bool on_device) {
  sharded_.clear();
  whole_.clear();
  trees_.clear();
  for (int32_t s = 0; s < static_cast<int32_t>(plan.sequences.size()); ++s) {
    if (plan.sequences[s].kind == RowsKind::kTree) {
      AddTree(plan, s, on_device);
    } else {
      AddPrefill(plan, s);
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

absl::Status RankVerifier::ChooseSharded(const StepPlan& plan, const model::LogitShard& logits,
                                         Verdict* verdict) {
  pairs_.clear();
  choices_.clear();
  noise_used_ = 0;
  for (const RowTask& task : sharded_) {
    const PlanSequence& sequence = plan.sequences[task.sequence];
    // A row's logits are about the token after it.
    const int32_t position = plan.positions[plan.logit_rows[task.logit]] + 1;
    if (logits.device != nullptr) {
      choices_.push_back({.row = task.logit,
                          .seed = sequence.sampling.seed,
                          .position = static_cast<uint32_t>(position),
                          .temperature = sequence.sampling.temperature});
      continue;
    }
    const auto noise =
        Noise(sequence.sampling, task.sequence, position, logits.first, logits.width);
    pairs_.push_back(speculation::PerturbedArgMax(logits.row(task.logit), noise,
                                                  sequence.sampling.temperature, logits.first));
  }
  absl::Status status;
  if (logits.device != nullptr) {
    pairs_.resize(choices_.size());
    status = logits.device->Best(choices_, absl::MakeSpan(pairs_));
  }
  if (communicator_->size() > 1) communicator_->AllReduceBest(absl::MakeSpan(pairs_));
  if (communicator_->rank() != 0) return status;
  for (size_t i = 0; i < sharded_.size(); ++i) {
    verdict->chosen[sharded_[i].logit] = pairs_[i].token;
  }
  return status;
}

void RankVerifier::GatherWhole(const StepPlan& plan, const model::LogitShard& logits) {
  rows_.assign(plan.logit_rows.size(), {});
  if (communicator_->size() == 1) {
    for (size_t l = 0; l < rows_.size(); ++l) rows_[l] = logits.row(static_cast<int>(l));
    return;
  }
  std::vector<int32_t> wanted;  // logit rows
  shard_rows_.clear();
  owners_.clear();
  const auto want = [&](int32_t s, int32_t logit) {
    const auto row = logits.row(logit);
    shard_rows_.insert(shard_rows_.end(), row.begin(), row.end());
    // Sequences are spread over the ranks; all rows of one stay together, and its weights with
    // them.
    owners_.push_back(static_cast<int>(plan.sequences[s].id % communicator_->size()));
    wanted.push_back(logit);
  };
  for (const RowTask& task : whole_) want(task.sequence, task.logit);
  for (int32_t s : trees_) {
    const PlanSequence& sequence = plan.sequences[s];
    for (int32_t i = 0; i < sequence.logit_count; ++i) want(s, sequence.first_logit + i);
  }
  communicator_->GatherRows(shard_rows_, logits.width, owners_, &whole_rows_);
  size_t mine = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (owners_[i] != communicator_->rank()) continue;
    const float* row = whole_rows_.data() + mine++ * vocabulary_;
    rows_[wanted[i]] = {row, static_cast<size_t>(vocabulary_)};
  }
}

bool RankVerifier::Mine(const PlanSequence& sequence) const {
  return static_cast<int>(sequence.id % communicator_->size()) == communicator_->rank();
}

absl::Span<const float> RankVerifier::Changed(const StepPlan& plan, int32_t s, int32_t logit) {
  const PlanSequence& sequence = plan.sequences[s];
  const absl::Span<const float> row = rows_[logit];
  const int32_t output_size = OutputSize(plan, sequence, logit);
  if (!sequence.rules.ChangeAt(output_size)) return row;
  if (changer_sequence_ != s) {
    changer_.Open(sequence.rules, sequence.counts);
    changer_sequence_ = s;
  }
  PathTo(plan, sequence, logit, &path_);
  return changer_.Change(row, path_, output_size);
}

base::TokenId RankVerifier::Choose(const StepPlan& plan, int32_t s, int32_t logit) {
  const base::SamplingParams& sampling = plan.sequences[s].sampling;
  const int32_t position = plan.positions[plan.logit_rows[logit]] + 1;
  const auto noise = Noise(sampling, s, position, 0, vocabulary_);
  return speculation::SampleRow(Changed(plan, s, logit), noise, sampling);
}

void RankVerifier::FinishRow(const StepPlan& plan, const RowTask& task, Verdict* verdict) {
  const PlanSequence& sequence = plan.sequences[task.sequence];
  base::TokenId token = plan.score_tokens[task.logit];
  if (task.chooses) {
    token = Choose(plan, task.sequence, task.logit);
    verdict->chosen[task.logit] = token;
  }
  if (!task.chooses || sequence.logprobs >= 0) {
    verdict->logprobs[task.logit] =
        speculation::RowLogprobs(rows_[task.logit], token, std::max(0, sequence.logprobs));
  }
}

speculation::Accepted RankVerifier::Walk(const StepPlan& plan, int32_t s,
                                         const speculation::TokenTree& tree) {
  speculation::Accepted accepted;
  int32_t node = 0;
  for (;;) {
    const base::TokenId token = Choose(plan, s, plan.sequences[s].first_logit + node);
    accepted.tokens.push_back(token);
    node = speculation::ChildWith(tree, node, token);
    if (node < 0) return accepted;
    accepted.path.push_back(node);
  }
}

speculation::Accepted RankVerifier::Weigh(const StepPlan& plan, int32_t s,
                                          const speculation::TokenTree& tree,
                                          const schemas::DraftWeights* weights) {
  const PlanSequence& sequence = plan.sequences[s];
  const auto position = static_cast<uint32_t>(plan.positions[sequence.first_row] + 1);
  const speculation::PhiloxRandomness random(sequence.sampling.seed, position, sequence.draw_number,
                                             tree);
  TreeToVerify round;
  round.tree = &tree;
  round.coupling = sequence.coupling;
  round.draw = sequence.draw;
  round.sampling = sequence.sampling;
  round.typical = typical_;
  round.weights = weights;
  round.weight_row = sequence.weight_row;
  return trees_verifier_.Verify(
      round, [&](int node) { return Changed(plan, s, sequence.first_logit + node); }, random);
}

void RankVerifier::FinishTree(const StepPlan& plan, int32_t s, const schemas::DraftWeights* weights,
                              Verdict* verdict) {
  const PlanSequence& sequence = plan.sequences[s];
  const speculation::TokenTree tree = TreeOf(plan, sequence);
  speculation::Accepted accepted =
      Weighs(sequence) ? Weigh(plan, s, tree, weights) : Walk(plan, s, tree);
  if (sequence.logprobs >= 0) {
    for (size_t i = 0; i < accepted.tokens.size(); ++i) {
      const int32_t node = i == 0 ? 0 : accepted.path[i - 1];
      const int32_t logit = sequence.first_logit + node;
      verdict->logprobs[logit] =
          speculation::RowLogprobs(rows_[logit], accepted.tokens[i], sequence.logprobs);
    }
  }
  verdict->accepted[s] = std::move(accepted);
}

absl::Status RankVerifier::Verify(const StepPlan& plan,
                                  absl::Span<const schemas::DraftWeights* const> weights,
                                  model::LogitShard logits, Verdict* verdict) {
  SplitWork(plan, logits.device != nullptr);
  absl::Status status;
  // The same plan on every rank splits alike, so all take part in the same collectives.
  if (!sharded_.empty()) status = ChooseSharded(plan, logits, verdict);
  if (whole_.empty() && trees_.empty()) return status;
  status.Update(model::FetchRows(&logits));
  if (!status.ok()) {
    lost_rows_.assign(static_cast<size_t>(logits.rows) * logits.width, 0.0f);
    logits.data = lost_rows_.data();
  }
  GatherWhole(plan, logits);
  noise_used_ = 0;
  changer_sequence_ = -1;
  for (const RowTask& task : whole_) {
    if (Mine(plan.sequences[task.sequence])) FinishRow(plan, task, verdict);
  }
  for (int32_t s : trees_) {
    if (Mine(plan.sequences[s])) FinishTree(plan, s, weights[s], verdict);
  }
  return status;
}

}  // namespace specfabric::target
