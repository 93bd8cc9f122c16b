#include "target/verifier.h"

#include <algorithm>
#include <utility>

#include "sampling/gumbel.h"
#include "sampling/sampling.h"
#include "speculation/tree.h"

namespace specfabric::target {

using scheduler::PlanSequence;
using scheduler::RowsKind;
using scheduler::StepPlan;

namespace {

// Makes room for the largest tree, once.
void Clear(speculation::Accepted* accepted) {
  accepted->path.clear();
  accepted->path.reserve(speculation::kMaxVerifyNodes);
  accepted->tokens.clear();
  accepted->tokens.reserve(speculation::kMaxVerifyNodes);
  accepted->finite = true;
}

void Clear(scheduler::SequenceResult* result) {
  Clear(&result->accepted);
  result->logprobs.clear();
  result->prompt_logprobs.clear();
  result->forced.clear();
}

}  // namespace

void VerifyResult::Reset(const StepPlan& plan) {
  chosen.assign(plan.logit_rows.size(), base::kNoToken);
  logprobs.Resize(plan.logit_rows.size());
  for (base::TokenLogprobs& one : logprobs) {
    one.token = base::kNoToken;
    one.top.clear();
  }
  accepted.Resize(plan.sequences.size());
  for (speculation::Accepted& one : accepted) Clear(&one);
}

int OwnerOf(const PlanSequence& sequence, int ranks) {
  return sequence.rules.masked ? 0 : static_cast<int>(sequence.id % ranks);
}

bool ReadsDraftProbs(const PlanSequence& sequence) {
  return sequence.kind == RowsKind::kTree && sequence.row_count > 1 &&
         speculation::NeedsDraftRows(sequence.verification, sequence.draw);
}

namespace {

// The tree that the rows of `sequence` verify, as the draft sent it.
speculation::TreeView TreeOf(const StepPlan& plan, const PlanSequence& sequence) {
  return {absl::MakeConstSpan(plan.parents).subspan(sequence.first_row, sequence.row_count),
          absl::MakeConstSpan(plan.tokens).subspan(sequence.first_row, sequence.row_count)};
}

// Log-probabilities for the tokens emitted: the choice at the root, then at each accepted node.
void CollectTreeLogprobs(const PlanSequence& sequence, const VerifyResult& verify_result,
                         scheduler::SequenceResult* result) {
  const speculation::Accepted& accepted = result->accepted;
  for (size_t i = 0; i < accepted.tokens.size(); ++i) {
    const int32_t node = i == 0 ? 0 : accepted.path[i - 1];
    result->logprobs.push_back(verify_result.logprobs[sequence.first_logit + node]);
  }
}

void CollectPrefill(const StepPlan& plan, const PlanSequence& sequence,
                    const VerifyResult& verify_result, scheduler::SequenceResult* result) {
  const int32_t end = sequence.first_logit + sequence.logit_count;
  for (int32_t l = sequence.first_logit; l < end; ++l) {
    result->accepted.finite = verify_result.chosen[l] != VerifyResult::kNotFinite;
    if (!result->accepted.finite) return;
    if (plan.score_tokens[l] != base::kNoToken) {
      result->prompt_logprobs.push_back(verify_result.logprobs[l]);
    } else if (verify_result.chosen[l] != base::kNoToken) {
      result->accepted.tokens.assign(1, verify_result.chosen[l]);
      if (sequence.logprobs >= 0) result->logprobs.assign(1, verify_result.logprobs[l]);
    }
  }
}

}  // namespace

void Accept(const StepPlan& plan, const VerifyResult& verify_result,
            scheduler::StepResult* result) {
  result->step = plan.step;
  result->sequences.Resize(plan.sequences.size());
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    const PlanSequence& sequence = plan.sequences[s];
    scheduler::SequenceResult* one = &result->sequences[s];
    Clear(one);
    one->id = sequence.id;
    if (sequence.kind == RowsKind::kPrefill) {
      CollectPrefill(plan, sequence, verify_result, one);
      continue;
    }
    if (VerifyResult::Decided(verify_result.accepted[s])) {
      one->accepted = verify_result.accepted[s];
    } else {
      const auto chosen = [&](int node) {
        return verify_result.chosen[sequence.first_logit + node];
      };
      speculation::WalkChosen(TreeOf(plan, sequence), chosen, &one->accepted);
    }
    if (sequence.logprobs >= 0) CollectTreeLogprobs(sequence, verify_result, one);
  }
}

namespace {

// The number of output tokens before the one that a logit row chooses or scores.
int32_t OutputSize(const StepPlan& plan, const PlanSequence& sequence, int32_t logit) {
  return plan.positions[plan.logit_rows[logit]] + 1 - sequence.prompt_size;
}

// The draft tokens after the last committed token up to a row, in no order; none for a prefill.
void PathTo(const StepPlan& plan, const PlanSequence& sequence, int32_t logit,
            std::vector<base::TokenId>* path) {
  path->clear();
  if (sequence.kind != RowsKind::kTree) return;
  for (int32_t row = plan.logit_rows[logit]; row != sequence.first_row;
       row = sequence.first_row + plan.parents[row]) {
    path->push_back(plan.tokens[row]);
  }
}

// Whether the sequence's rows need penalties, bias or log-probabilities, which are computed on the
// host. logit: the first row that chooses. Rules that change no logits at the root change none
// below.
bool NeedsTheHost(const StepPlan& plan, const PlanSequence& sequence, int32_t logit) {
  return sequence.logprobs >= 0 || sequence.rules.ChangeAt(OutputSize(plan, sequence, logit));
}

// Whether the sequence's rows are needed with the whole vocabulary, likewise.
bool NeedsWholeRows(const StepPlan& plan, const PlanSequence& sequence, int32_t logit) {
  const bool filters = !sequence.sampling.greedy() && sequence.sampling.filtered();
  return filters || NeedsTheHost(plan, sequence, logit);
}

bool VerifiesTree(const PlanSequence& sequence) {
  return sequence.row_count > 1 &&
         sequence.verification != speculation::VerificationMethod::kCoupled;
}

// The token after one row, as a tree of a single node.
verification::DeviceTree SingleNode(const StepPlan& plan, const PlanSequence& sequence,
                                    int32_t logit) {
  static constexpr int32_t kNoParent = -1;
  const int32_t row = plan.logit_rows[logit];
  return {.parents = absl::MakeConstSpan(&kNoParent, 1),
          .tokens = absl::MakeConstSpan(plan.tokens).subspan(row, 1),
          .first_logit = logit,
          .sampling = sequence.sampling,
          .position = static_cast<uint32_t>(plan.positions[row] + 1)};
}

verification::DeviceTree WholeTree(const StepPlan& plan, const PlanSequence& sequence,
                                   const verification::TypicalOptions& typical,
                                   const speculation::DraftProbs* draft_probs) {
  verification::DeviceTree tree = SingleNode(plan, sequence, sequence.first_logit);
  const auto rows = [&](const std::vector<int32_t>& values) {
    return absl::MakeConstSpan(values).subspan(sequence.first_row, sequence.row_count);
  };
  tree.parents = rows(plan.parents);
  tree.tokens = rows(plan.tokens);
  if (VerifiesTree(sequence)) {
    tree.verification = sequence.verification;
    tree.draw = sequence.draw;
    tree.typical = typical;
    tree.draw_number = sequence.draw_number;
  }
  if (ReadsDraftProbs(sequence)) {
    tree.draft_row = sequence.draft_row;
    tree.draft_probs = draft_probs->bytes();
    tree.draft_probs_on_device = draft_probs->on_device();
    tree.totals = draft_probs->totals();
    tree.entries = draft_probs->shape().entries;
  }
  return tree;
}

}  // namespace

void RankVerifier::AddTree(const StepPlan& plan, int32_t s,
                           const speculation::DraftProbs* draft_probs, bool device_decides) {
  const PlanSequence& sequence = plan.sequences[s];
  const bool unsound = ReadsDraftProbs(sequence) && draft_probs == nullptr;
  if (device_decides && !unsound && !NeedsTheHost(plan, sequence, sequence.first_logit)) {
    decided_.push_back(s);
    return device_trees_.push_back(WholeTree(plan, sequence, typical_, draft_probs));
  }
  const bool alone = communicator_->size() == 1;
  if (alone || VerifiesTree(sequence) || NeedsWholeRows(plan, sequence, sequence.first_logit)) {
    return trees_.push_back(s);
  }
  for (int32_t i = 0; i < sequence.logit_count; ++i) {
    sharded_.push_back({s, sequence.first_logit + i, true});
  }
}

void RankVerifier::AddPrefill(const StepPlan& plan, int32_t s, bool device_decides) {
  const PlanSequence& sequence = plan.sequences[s];
  const int32_t end = sequence.first_logit + sequence.logit_count;
  for (int32_t l = sequence.first_logit; l < end; ++l) {
    if (plan.score_tokens[l] != base::kNoToken) {
      whole_.push_back({s, l, false});
    } else if (sequence.samples && l == end - 1) {
      if (device_decides && !NeedsTheHost(plan, sequence, l)) {
        decided_.push_back(s);
        device_trees_.push_back(SingleNode(plan, sequence, l));
      } else {
        (NeedsWholeRows(plan, sequence, l) ? whole_ : sharded_).push_back({s, l, true});
      }
    }
  }
}

void RankVerifier::SplitWork(const StepPlan& plan,
                             absl::Span<const speculation::DraftProbs* const> draft_probs,
                             bool on_device) {
  sharded_.clear();
  whole_.clear();
  trees_.clear();
  decided_.clear();
  device_trees_.clear();
  const bool device_decides = on_device && communicator_->size() == 1;
  for (int32_t s = 0; s < static_cast<int32_t>(plan.sequences.size()); ++s) {
    if (plan.sequences[s].kind == RowsKind::kTree) {
      AddTree(plan, s, draft_probs[s], device_decides);
    } else {
      AddPrefill(plan, s, device_decides);
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
  sampling::GumbelNoise(sampling.seed, static_cast<uint32_t>(position), first,
                        absl::MakeSpan(row.values));
  return row.values;
}

absl::Status RankVerifier::ChooseSharded(const StepPlan& plan, const model::LogitShard& logits,
                                         VerifyResult* verify_result) {
  pairs_.clear();
  choices_.clear();
  noise_used_ = 0;
  for (const RowTask& task : sharded_) {
    const PlanSequence& sequence = plan.sequences[task.sequence];
    // A row's logits choose the token after it.
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
    pairs_.push_back(sampling::PerturbedArgMax(logits.row(task.logit), noise,
                                               sequence.sampling.temperature, logits.first));
  }
  absl::Status status;
  if (logits.device != nullptr) {
    pairs_.resize(choices_.size());
    status = device_->Best(logits.device->matrix(), choices_, absl::MakeSpan(pairs_));
  }
  if (communicator_->size() > 1) communicator_->AllReduceBest(absl::MakeSpan(pairs_));
  if (communicator_->rank() != 0) return status;
  for (size_t i = 0; i < sharded_.size(); ++i) {
    const bool finite = pairs_[i].score != sampling::kNotFinite;
    verify_result->chosen[sharded_[i].logit] = finite ? pairs_[i].token : VerifyResult::kNotFinite;
  }
  return status;
}

absl::Status RankVerifier::DecideOnDevice(const StepPlan& plan, const model::DeviceLogits& logits,
                                          VerifyResult* verify_result) {
  accepted_.assign(device_trees_.size(), {});
  absl::Status status = device_->Verify(logits.matrix(), device_trees_, absl::MakeSpan(accepted_));
  if (!status.ok()) return status;
  for (size_t i = 0; i < decided_.size(); ++i) {
    const int32_t s = decided_[i];
    if (plan.sequences[s].kind == RowsKind::kTree) {
      std::swap(verify_result->accepted[s], accepted_[i]);  // both keep their memory
    } else {
      verify_result->chosen[device_trees_[i].first_logit] =
          accepted_[i].finite ? accepted_[i].tokens.front() : VerifyResult::kNotFinite;
    }
  }
  return absl::OkStatus();
}

void RankVerifier::WantRows(const StepPlan& plan) {
  wanted_.clear();
  owners_.clear();
  const auto want = [&](int32_t s, int32_t logit) {
    wanted_.push_back(logit);
    // Sequences are spread over the ranks; the owner gets all rows of a sequence and its
    // draft_probs.
    owners_.push_back(OwnerOf(plan.sequences[s], communicator_->size()));
  };
  for (const RowTask& task : whole_) want(task.sequence, task.logit);
  for (int32_t s : trees_) {
    const PlanSequence& sequence = plan.sequences[s];
    for (int32_t i = 0; i < sequence.logit_count; ++i) want(s, sequence.first_logit + i);
  }
}

// If the device fails, taken_rows_ are zeros, so that the collectives can go on.
absl::Status RankVerifier::TakeRows(const model::LogitShard& logits) {
  const size_t size = wanted_.size() * logits.width;
  absl::Status status;
  if (logits.device != nullptr) {
    const absl::StatusOr<const float*> fetched = logits.device->Fetch(wanted_);
    if (fetched.ok()) {
      taken_rows_ = absl::MakeConstSpan(*fetched, size);
      return status;
    }
    status = fetched.status();
    shard_rows_.assign(size, 0.0f);
  } else {
    shard_rows_.clear();
    for (int32_t logit : wanted_) {
      const auto row = logits.row(logit);
      shard_rows_.insert(shard_rows_.end(), row.begin(), row.end());
    }
  }
  taken_rows_ = shard_rows_;
  return status;
}

absl::Status RankVerifier::GatherWhole(const StepPlan& plan, const model::LogitShard& logits) {
  rows_.assign(plan.logit_rows.size(), {});
  WantRows(plan);
  const bool alone = communicator_->size() == 1;
  if (alone && logits.device == nullptr) {
    for (int32_t logit : wanted_) rows_[logit] = logits.row(logit);
    return absl::OkStatus();
  }
  const absl::Status status = TakeRows(logits);
  absl::Span<const float> whole = taken_rows_;
  if (!alone) {
    communicator_->GatherRows(taken_rows_, logits.width, owners_, &whole_rows_);
    whole = whole_rows_;
  }
  size_t mine = 0;
  for (size_t i = 0; i < wanted_.size(); ++i) {
    if (owners_[i] != communicator_->rank()) continue;
    rows_[wanted_[i]] = whole.subspan(mine++ * vocabulary_, vocabulary_);
  }
  return status;
}

bool RankVerifier::Mine(const PlanSequence& sequence) const {
  return OwnerOf(sequence, communicator_->size()) == communicator_->rank();
}

bool RankVerifier::HasMasks(const StepPlan& plan, int32_t s) const {
  if (!plan.sequences[s].rules.masked) return true;
  if (masks_ == nullptr || masks_->rows[s].empty()) return false;
  return !masks_->wait || masks_->wait(s).ok();
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
  absl::Span<const uint32_t> mask;
  if (sequence.rules.masked) mask = masks_->row(s, logit - sequence.first_logit);
  return changer_.Change(row, path_, output_size, mask);
}

base::TokenId RankVerifier::Choose(const StepPlan& plan, int32_t s, int32_t logit) {
  const base::SamplingParams& sampling = plan.sequences[s].sampling;
  const int32_t position = plan.positions[plan.logit_rows[logit]] + 1;
  const auto noise = Noise(sampling, s, position, 0, vocabulary_);
  return sampling::SampleRow(Changed(plan, s, logit), noise, sampling, &kept_);
}

void RankVerifier::FinishRow(const StepPlan& plan, const RowTask& task,
                             VerifyResult* verify_result) {
  const PlanSequence& sequence = plan.sequences[task.sequence];
  base::TokenId token = plan.score_tokens[task.logit];
  if (task.chooses) {
    const bool masks = HasMasks(plan, task.sequence);
    token = masks ? Choose(plan, task.sequence, task.logit) : base::kNoToken;
    verify_result->chosen[task.logit] = token == base::kNoToken ? VerifyResult::kNotFinite : token;
  }
  if (token == base::kNoToken || (task.chooses && sequence.logprobs < 0)) return;
  base::TokenLogprobs& logprobs = verify_result->logprobs[task.logit];
  logprobs = sampling::RowLogprobs(rows_[task.logit], token, std::max(0, sequence.logprobs));
  if (logprobs.token == base::kNoToken)
    verify_result->chosen[task.logit] = VerifyResult::kNotFinite;
}

void RankVerifier::Walk(const StepPlan& plan, int32_t s, speculation::TreeView tree,
                        speculation::Accepted* accepted) {
  const int32_t first = plan.sequences[s].first_logit;
  const auto choose = [&](int node) { return Choose(plan, s, first + node); };
  speculation::WalkChosen(tree, choose, accepted);
}

void RankVerifier::VerifyTree(const StepPlan& plan, int32_t s, speculation::TreeView tree,
                              const speculation::DraftProbs* draft_probs,
                              speculation::Accepted* accepted) {
  const PlanSequence& sequence = plan.sequences[s];
  const auto position = static_cast<uint32_t>(plan.positions[sequence.first_row] + 1);
  const verification::PhiloxRandomness random(sequence.sampling.seed, position,
                                              sequence.draw_number, tree);
  verification::TreeToVerify round;
  round.tree = tree;
  round.verification = sequence.verification;
  round.sampling = sequence.sampling;
  round.typical = typical_;
  if (tree.size() > 1) {
    round.draw = sequence.draw;
    round.draft_probs = draft_probs;
    round.draft_row = sequence.draft_row;
  }
  trees_verifier_.Verify(
      round, [&](int node) { return Changed(plan, s, sequence.first_logit + node); }, random,
      accepted);
}

absl::StatusOr<const speculation::DraftProbs*> RankVerifier::OnHost(
    const speculation::DraftProbs* draft_probs) {
  if (draft_probs == nullptr || !draft_probs->on_device()) return draft_probs;
  const size_t bytes = draft_probs->shape().bytes();
  draft_probs_words_.resize((bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t));
  auto* const here = reinterpret_cast<uint8_t*>(draft_probs_words_.data());
  absl::Status fetched = draft_rows_->Fetch(draft_probs->bytes(), here);
  if (!fetched.ok()) return fetched;
  // Validated again, since their sender may have been able to change them.
  auto opened = speculation::DraftProbs::Open(draft_probs->shape(), {here, bytes});
  if (!opened.ok()) return nullptr;
  host_draft_probs_ = *std::move(opened);
  return &host_draft_probs_;
}

absl::Status RankVerifier::FinishTree(const StepPlan& plan, int32_t s,
                                      const speculation::DraftProbs* draft_probs,
                                      VerifyResult* verify_result) {
  const PlanSequence& sequence = plan.sequences[s];
  speculation::TreeView tree = TreeOf(plan, sequence);
  const absl::StatusOr<const speculation::DraftProbs*> here = OnHost(draft_probs);
  if (!here.ok()) return here.status();
  if (*here == nullptr && ReadsDraftProbs(sequence)) {
    tree = tree.Root();  // nothing of it can be accepted
  }
  speculation::Accepted& accepted = verify_result->accepted[s];
  if (!HasMasks(plan, s)) {
    accepted.finite = false;
  } else if (VerifiesTree(sequence)) {
    VerifyTree(plan, s, tree, *here, &accepted);
  } else {
    Walk(plan, s, tree, &accepted);
  }
  if (sequence.logprobs >= 0) {
    for (size_t i = 0; i < accepted.tokens.size(); ++i) {
      const int32_t node = i == 0 ? 0 : accepted.path[i - 1];
      const int32_t logit = sequence.first_logit + node;
      verify_result->logprobs[logit] =
          sampling::RowLogprobs(rows_[logit], accepted.tokens[i], sequence.logprobs);
    }
  }
  return absl::OkStatus();
}

absl::Status RankVerifier::Verify(const StepPlan& plan, const VerifyInputs& inputs,
                                  const model::LogitShard& logits, VerifyResult* verify_result) {
  masks_ = inputs.masks;
  SplitWork(plan, inputs.draft_probs, logits.device != nullptr);
  absl::Status status;
  if (!decided_.empty()) status = DecideOnDevice(plan, *logits.device, verify_result);
  // Every rank splits the plan alike, so all take part in the same collectives.
  if (!sharded_.empty()) status.Update(ChooseSharded(plan, logits, verify_result));
  if (whole_.empty() && trees_.empty()) return status;
  status.Update(GatherWhole(plan, logits));
  noise_used_ = 0;
  changer_sequence_ = -1;
  for (const RowTask& task : whole_) {
    if (Mine(plan.sequences[task.sequence])) FinishRow(plan, task, verify_result);
  }
  for (int32_t s : trees_) {
    if (!Mine(plan.sequences[s])) continue;
    status.Update(FinishTree(plan, s, inputs.draft_probs[s], verify_result));
  }
  return status;
}

}  // namespace specfabric::target
