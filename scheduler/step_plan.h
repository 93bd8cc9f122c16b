#ifndef SPECFABRIC_SCHEDULER_STEP_PLAN_H_
#define SPECFABRIC_SCHEDULER_STEP_PLAN_H_

// What one forward pass of a target group does, as flat arrays: a prefill chunk is a causal chain,
// a plain decode is a tree of one node, a verification is a tree. Flat, so that a plan can be sent
// to rank processes on other machines.

#include <cstdint>
#include <vector>

#include "base/logit_rules.h"
#include "base/reused_vector.h"
#include "base/types.h"
#include "sampling/logit_changer.h"
#include "speculation/tree.h"

namespace specfabric::scheduler {

// Copies the K and V of one physical slot (block * block_size + offset) to another, on every layer.
// Moves of one plan are done in order, before the forward pass.
struct SlotMove {
  int32_t from = 0;
  int32_t to = 0;
};

enum class RowsKind : uint8_t {
  kPrefill,  // a causal chain of prompt (or resumed) tokens
  kTree,     // the last committed token and draft tokens below it; a single node is a decode
};

// One sequence's part of the step. Row i of it writes KV slot kv_len + i; its position is
// kv_len + i in a chain and kv_len + depth(i) in a tree.
struct PlanSequence {
  base::SequenceId id = 0;
  RowsKind kind = RowsKind::kTree;
  int32_t kv_len = 0;     // slots that are written: visible to every row of this sequence
  int32_t first_row = 0;  // rows [first_row, first_row + row_count) of the plan
  int32_t row_count = 0;
  int32_t first_block = 0;  // its KV blocks, in order: [first_block, first_block + block_count)
  int32_t block_count = 0;
  int32_t first_logit = 0;  // its part of StepPlan::logit_rows; may be empty (inner prefill chunk)
  int32_t logit_count = 0;
  bool samples = false;   // tokens are chosen: at every row of a tree, at the last row of a prefill
  int32_t logprobs = -1;  // top log-probabilities to report for chosen and scored tokens; -1 none
  base::SamplingParams sampling;
  int32_t prompt_size = 0;
  // For trees of more than one node; the token after a single node is chosen as by kCoupled.
  speculation::VerificationMethod verification = speculation::VerificationMethod::kCoupled;
  speculation::SiblingDraw draw = speculation::SiblingDraw::kCoupledTopK;
  uint32_t draw_number = 0;                  // sampling::DrawNumber
  std::vector<int32_t> draft_row;            // as speculation::Draft's
  base::LogitRules rules;                    // for the rows that choose tokens
  std::vector<sampling::TokenCount> counts;  // of the committed text, where `rules` has penalties
};

struct StepPlan {
  uint64_t step = 0;
  std::vector<base::TokenId> tokens;  // [rows]
  std::vector<int32_t> positions;     // [rows]
  std::vector<int32_t> parents;       // [rows] row index within the sequence, -1 for its first
  std::vector<uint64_t> ancestors;    // [rows] tree rows: bit j = row j of the sequence is row i
                                      // or its ancestor; 0 for prefill rows (causal)
  std::vector<PlanSequence> sequences;
  std::vector<int32_t> blocks;              // physical KV blocks, see PlanSequence::first_block
  std::vector<int32_t> logit_rows;          // ascending rows whose logits are wanted
  std::vector<base::TokenId> score_tokens;  // [logit_rows] the known next token of a scored prompt
                                            // row (echo + logprobs), else kNoToken
  std::vector<SlotMove> moves;
  // Sequences that lost their blocks to this step, and their drafts: none is in `sequences`.
  std::vector<base::SequenceId> preempted;
  int rows() const { return static_cast<int>(tokens.size()); }
};

// What verification found for one PlanSequence, in plan order. For a prefill that does not sample,
// `accepted` is empty. If `accepted.finite` is false, the result ends before the row whose logits
// are not finite.
struct SequenceResult {
  base::SequenceId id = 0;
  speculation::Accepted accepted;             // a prefill's last row gives path {} and one token
  std::vector<base::TokenLogprobs> logprobs;  // [accepted.tokens] if asked for
  std::vector<base::TokenLogprobs> prompt_logprobs;  // one for each scored row, in row order
  // Tokens that the grammar forces after the accepted ones: the next draft tokens.
  std::vector<base::TokenId> forced = {};
};

struct StepResult {
  uint64_t step = 0;
  base::ReusedVector<SequenceResult> sequences;  // as StepPlan::sequences
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_STEP_PLAN_H_
