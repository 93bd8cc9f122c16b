#include "scheduler/plan_rows.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "sampling/uniform.h"

namespace specfabric::scheduler {
namespace {

using base::TokenId;
using speculation::TokenTree;

// Appends a PlanSequence whose rows and logit rows begin at the end of the plan's. Filled in place:
// with a thousand sequences, moving it in would take a good part of the time of a plan.
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

// The rows of `part` choose the tokens that follow the committed ones.
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

}  // namespace

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
    // Swapped, so that the memory of the last planned draft is freed by the next reply, not here.
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

}  // namespace specfabric::scheduler
