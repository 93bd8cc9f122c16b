#include "scheduler/sequence.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/prefetch.h"
#include "sampling/uniform.h"

namespace specfabric::scheduler {
namespace {

using base::TokenId;
using speculation::TokenTree;

// Appends a PlanSequence whose rows and logit rows begin at the end of what the plan holds. Filled
// in place: with a thousand sequences moving it would be a good part of a plan's time.
PlanSequence* OpenPlanSequence(const Sequence& sequence, RowsKind kind, int32_t rows,
                               int32_t block_size, StepPlan* plan) {
  PlanSequence& part = plan->sequences.emplace_back();
  part.id = sequence.request.id;
  part.kind = kind;
  part.kv_len = sequence.kv_written;
  part.first_row = plan->rows();
  part.row_count = rows;
  part.first_block = static_cast<int32_t>(plan->blocks.size());
  part.block_count = (sequence.kv_written + rows + block_size - 1) / block_size;
  part.first_logit = static_cast<int32_t>(plan->logit_rows.size());
  part.logprobs = sequence.request.score_prompt ? std::max(0, sequence.request.logprobs)
                                                : sequence.request.logprobs;
  part.sampling = sequence.request.sampling;
  part.prompt_size = sequence.prompt_size();
  SPECFABRIC_CHECK(part.block_count <= static_cast<int32_t>(sequence.blocks.size()));
  plan->blocks.insert(plan->blocks.end(), sequence.blocks.begin(),
                      sequence.blocks.begin() + part.block_count);
  return &part;
}

void WantLogits(int32_t row, TokenId score_token, StepPlan* plan) {
  plan->logit_rows.push_back(row);
  plan->score_tokens.push_back(score_token);
}

// The rows of `part` choose the tokens that follow what is committed.
void WantChoices(const Sequence& sequence, PlanSequence* part) {
  part->samples = true;
  part->rules = sequence.request.rules;
  part->counts = sequence.counts.list();
}

// The rows of a tree whose root is at `position`, all of whose logits are wanted.
void AppendTree(const TokenTree& tree, int32_t position, StepPlan* plan) {
  const auto rows = static_cast<size_t>(tree.size()), root = plan->tokens.size();
  plan->tokens.insert(plan->tokens.end(), tree.tokens.begin(), tree.tokens.end());
  plan->parents.insert(plan->parents.end(), tree.parents.begin(), tree.parents.end());
  plan->score_tokens.insert(plan->score_tokens.end(), rows, base::kNoToken);
  plan->logit_rows.resize(plan->logit_rows.size() + rows);
  std::iota(plan->logit_rows.end() - rows, plan->logit_rows.end(), static_cast<int32_t>(root));
  plan->positions.resize(root + rows);
  plan->ancestors.resize(root + rows);
  int32_t* positions = plan->positions.data() + root;
  uint64_t* ancestors = plan->ancestors.data() + root;
  positions[0] = position;
  ancestors[0] = 1;
  for (size_t node = 1; node < rows; ++node) {
    const int32_t parent = tree.parents[node];
    positions[node] = positions[parent] + 1;
    ancestors[node] = ancestors[parent] | uint64_t{1} << node;
  }
}

void ClosePlanSequence(const StepPlan& plan, PlanSequence* part) {
  part->logit_count = static_cast<int32_t>(plan.logit_rows.size()) - part->first_logit;
}

// The accepted path must be one of the planned tree's, and its tokens the tree's.
void CheckAccepted(const speculation::Accepted& accepted, const TokenTree& tree) {
  SPECFABRIC_CHECK(accepted.tokens.size() == accepted.path.size() + (accepted.finite ? 1 : 0));
  int32_t parent = 0;
  for (size_t i = 0; i < accepted.path.size(); ++i) {
    const int32_t node = accepted.path[i];
    SPECFABRIC_CHECK(node > 0 && node < tree.size() && tree.parents[node] == parent);
    SPECFABRIC_CHECK(tree.tokens[node] == accepted.tokens[i]);
    parent = node;
  }
}

// Appends tokens until one ends the sequence; returns how many were appended.
int32_t AppendUntilFinished(const std::vector<TokenId>& tokens, Sequence* sequence,
                            std::optional<FinishReason>* finish) {
  const std::vector<TokenId>& stop_ids = sequence->request.stop_ids;
  int32_t appended = 0;
  for (TokenId token : tokens) {
    sequence->Append(token);
    ++appended;
    if (std::find(stop_ids.begin(), stop_ids.end(), token) != stop_ids.end()) {
      *finish = FinishReason::kStop;
      break;
    }
    if (sequence->committed_size() >= sequence->limit) {
      *finish = FinishReason::kLength;
      break;
    }
  }
  return appended;
}

// Node path[j] was written at slot kv_written + path[j] and belongs at kv_written + 1 + j. Paths
// ascend, so no move overwrites the source of a later one. Nodes before the first that moves are
// where they belong.
void CompactPath(const std::vector<int32_t>& path, int32_t block_size, Sequence* sequence) {
  sequence->settled = sequence->kv_written + 1;
  for (size_t j = 0; j < path.size(); ++j) {
    const int32_t to = sequence->kv_written + 1 + static_cast<int32_t>(j);
    const int32_t from = sequence->kv_written + path[j];
    if (from == to) {
      ++sequence->settled;
      continue;
    }
    sequence->moves.push_back(
        {sequence->PhysicalSlot(from, block_size), sequence->PhysicalSlot(to, block_size)});
    sequence->moves_end = from + 1;
  }
}

void ApplyPrefill(SequenceResult* result, Sequence* sequence, TokensEvent* event) {
  sequence->kv_written += sequence->planned_rows;
  sequence->settled = sequence->kv_written;
  if (sequence->scores()) {
    sequence->prompt_logprobs.insert(sequence->prompt_logprobs.end(),
                                     result->prompt_logprobs.begin(),
                                     result->prompt_logprobs.end());
  }
  if (!result->accepted.finite) {
    const auto scored = static_cast<int32_t>(sequence->prompt_logprobs.size());
    const bool in_prompt = sequence->scores() && scored + 1 < sequence->prompt_size();
    event->not_finite_at = in_prompt ? scored + 1 : sequence->committed_size();
    event->finish = FinishReason::kNotFinite;
    return;
  }
  if (sequence->kv_written < sequence->committed_size()) {
    SPECFABRIC_CHECK(result->accepted.tokens.empty());
    return;
  }
  event->prompt_logprobs = std::exchange(sequence->prompt_logprobs, {});
  if (!std::exchange(sequence->prefilled_once, true)) {
    event->cached_tokens = std::min(sequence->cached_tokens, sequence->prompt_size());
  }
  if (!sequence->samples()) {
    event->finish = FinishReason::kLength;
    return;
  }
  SPECFABRIC_CHECK(result->accepted.path.empty() && result->accepted.tokens.size() == 1);
  AppendUntilFinished(result->accepted.tokens, sequence, &event->finish);
  event->tokens = std::move(result->accepted.tokens);
  sequence->phase = Phase::kRunning;
}

void CountSource(speculation::Source source, DraftTokenCounts* counts) {
  if (source.proposed_by != speculation::ProposalSource::kNgramLookup)
    ++counts->by_drafter[source.drafter];
  if (source.proposed_by == speculation::ProposalSource::kNgramLookup) ++counts->by_ngram_lookup;
  if (source.proposed_by == speculation::ProposalSource::kSeveral && source.from_ngram_lookup) {
    ++counts->also_ngram_lookup;
  }
}

void ApplyTree(SequenceResult* result, int32_t block_size, Sequence* sequence, TokensEvent* event) {
  speculation::Accepted& accepted = result->accepted;
  const speculation::Draft& planned = sequence->planned;
  CheckAccepted(accepted, planned.tree);
  event->round = true;
  event->drafted = planned.tree.size() - 1;
  for (int node = 1; node < planned.tree.size(); ++node) {
    CountSource(planned.source(node), &event->drafted_by);
  }
  const int32_t appended = AppendUntilFinished(accepted.tokens, sequence, &event->finish);
  event->tokens = std::move(accepted.tokens);
  event->tokens.resize(appended);
  event->accepted = std::min(appended, static_cast<int32_t>(accepted.path.size()));
  for (int i = 0; i < event->accepted; ++i) {
    CountSource(planned.source(accepted.path[i]), &event->accepted_by);
  }
  if (!accepted.finite && !event->finish) {
    event->not_finite_at = sequence->committed_size();
    event->finish = FinishReason::kNotFinite;
    return;
  }
  CompactPath(accepted.path, block_size, sequence);
  // Where the end cut the path, what is behind it is no committed token's.
  sequence->settled = std::min(sequence->settled, sequence->committed_size());
  if (!event->finish) sequence->kv_written = sequence->committed_size() - 1;
}

}  // namespace

Sequence::Sequence(SequenceRequest given, int32_t max_context)
    : committed(given.prompt), request(std::move(given)) {
  if (request.rules.counts_prompt()) {
    for (TokenId token : request.prompt) counts.AddPrompt(token);
  }
  for (TokenId token : request.generated) Append(token);
  limit = static_cast<int32_t>(
      std::min<int64_t>(int64_t{prompt_size()} + request.max_tokens, max_context));
}

void Sequence::Reserve(int32_t block_size) {
  committed.reserve(limit);
  blocks.reserve(limit / block_size + 1);
  keys.reserve(limit / block_size + 1);
}

void Sequence::Append(TokenId token) {
  committed.push_back(token);
  if (request.rules.penalises()) counts.AddOutput(token);
}

float Sequence::Value(base::Nanos now) const {
  // The shares of others shift, but nobody's is taken away.
  constexpr double kMaxValue = 8;
  if (request.priority == 0 && request.tpot_slo == 0) return 1.0f;
  double value = std::ldexp(1.0, std::clamp(request.priority, -3, 3));
  if (request.tpot_slo > 0 && first_token > 0 && output_size() > 0) {
    const double so_far = static_cast<double>(now - first_token) / output_size();
    const double behind = so_far / static_cast<double>(request.tpot_slo);
    // As it comes near what was asked for, not only once it is past it.
    value *= std::clamp(std::pow(behind / 0.8, 3), 1.0, kMaxValue);
  }
  return static_cast<float>(value);
}

void Sequence::Prefetch() const {
  base::Prefetch(this, offsetof(Sequence, keys));
  base::Prefetch(&counts, sizeof(counts) + sizeof(request));
}

void Sequence::PrefetchForPlan() const {
  base::Prefetch(blocks.data(), blocks.size() * sizeof(int32_t));
  __builtin_prefetch(committed.data() + committed.size() - 1);
  if (!has_draft) return;
  __builtin_prefetch(expected_gain.data());
  __builtin_prefetch(draft.tree.parents.data());
  __builtin_prefetch(draft.tree.tokens.data());
  __builtin_prefetch(draft.tree.scores.data());
}

void Sequence::PrefetchForCommit() const {
  __builtin_prefetch(committed.data() + committed.size());
  __builtin_prefetch(planned.tree.parents.data());
  __builtin_prefetch(planned.tree.tokens.data());
  __builtin_prefetch(planned.sources.data());
}

int32_t Sequence::useful_draft_nodes(int32_t max_tree_nodes) const {
  return std::max(0, std::min(max_tree_nodes - 1, limit - committed_size() - 1));
}

int32_t SlotsNeeded(const Sequence& sequence) {
  return std::max(sequence.committed_size(), sequence.limit - 1);
}

void PlanPrefill(int32_t rows, int32_t block_size, Sequence* sequence, StepPlan* plan) {
  PlanSequence* part = OpenPlanSequence(*sequence, RowsKind::kPrefill, rows, block_size, plan);
  const int32_t end = sequence->kv_written + rows;
  if (sequence->samples() && end == sequence->committed_size()) WantChoices(*sequence, part);
  for (int32_t i = 0; i < rows; ++i) {
    const int32_t index = sequence->kv_written + i;
    const int32_t row = plan->rows();
    plan->tokens.push_back(sequence->committed[index]);
    plan->positions.push_back(index);
    plan->parents.push_back(i - 1);
    plan->ancestors.push_back(0);
    const bool scored = sequence->scores() && index + 1 < sequence->prompt_size();
    if (scored) {
      WantLogits(row, sequence->request.prompt[index + 1], plan);
    } else if (part->samples && i == rows - 1) {
      WantLogits(row, base::kNoToken, plan);
    }
  }
  sequence->planned = {};
  sequence->planned_rows = rows;
  ClosePlanSequence(*plan, part);
}

void PlanTree(absl::Span<const int32_t> nodes, int32_t block_size, Sequence* sequence,
              StepPlan* plan) {
  speculation::Draft& draft = sequence->planned;
  if (nodes.empty()) {
    draft.tree.parents.assign(1, -1);
    draft.tree.tokens.assign(1, sequence->committed.back());
    draft.tree.scores.assign(1, 0.0f);
    draft.draw = {};
    draft.draft_row.clear();
    draft.sources.clear();
  } else {
    // What was planned last is freed by the next draft, which nobody waits for, not here.
    std::swap(draft, sequence->draft);
    if (static_cast<int>(nodes.size()) + 1 < draft.tree.size()) Keep(nodes, &draft);
  }
  sequence->has_draft = false;
  const TokenTree& tree = draft.tree;
  sequence->planned_rows = tree.size();
  PlanSequence* part = OpenPlanSequence(*sequence, RowsKind::kTree, tree.size(), block_size, plan);
  WantChoices(*sequence, part);
  part->verification = sequence->request.verification;
  part->draw = draft.draw;
  part->draw_number = sampling::DrawNumber(sequence->request.attempt, sequence->wait.round());
  part->draft_row = std::move(draft.draft_row);
  plan->moves.insert(plan->moves.end(), sequence->moves.begin(), sequence->moves.end());
  sequence->moves.clear();
  sequence->moves_end = 0;
  AppendTree(tree, sequence->kv_written, plan);
  ClosePlanSequence(*plan, part);
}

void ApplyResult(SequenceResult* result, int32_t block_size, Sequence* sequence,
                 TokensEvent* event) {
  SPECFABRIC_CHECK(result->id == sequence->request.id);
  event->id = sequence->request.id;
  event->first_index = sequence->output_size();
  if (sequence->phase == Phase::kPrefill) {
    ApplyPrefill(result, sequence, event);
  } else {
    ApplyTree(result, block_size, sequence, event);
  }
  if (sequence->request.logprobs >= 0) {
    event->logprobs = std::move(result->logprobs);
    event->logprobs.resize(std::min(event->logprobs.size(), event->tokens.size()));
  }
}

}  // namespace specfabric::scheduler
