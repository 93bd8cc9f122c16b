// Codec of Step: the plan that a group's leader sends to its rank processes. A decoded step is
// consistent in itself; whether it fits the receiver's model and cache is for the receiver to check
// (target/step_parts.h).

#include "schemas/wire.h"
#include "schemas/wire_lists.h"
#include "speculation/tree.h"

namespace specfabric::schemas {
namespace {

using flatbuffers::Offset;
using scheduler::PlanSequence;
using scheduler::RowsKind;
using scheduler::StepPlan;
using wire::Checker;
using wire::Copy;
using wire::FlatBufferBuilder;
using wire::VerifiedTable;
using wire::View;

Offset<wire::PlanSequence> WriteSequence(const PlanSequence& s, FlatBufferBuilder& builder) {
  const auto sampling = wire::ToWire(s.sampling);
  std::vector<wire::TokenCount> counts;
  for (const sampling::TokenCount& count : s.counts) {
    counts.emplace_back(count.token, count.output);
  }
  const auto draft_row = builder.CreateVector(s.draft_row);
  const wire::RuleLists rules = wire::WriteRules(s.rules, builder);
  const auto all_counts = builder.CreateVectorOfStructs(counts);
  return wire::CreatePlanSequence(
      builder, s.id, static_cast<uint8_t>(s.kind), s.kv_len, s.first_row, s.row_count,
      s.first_block, s.block_count, s.first_logit, s.logit_count, s.samples, s.logprobs, &sampling,
      s.prompt_size, static_cast<uint8_t>(s.verification), static_cast<uint8_t>(s.draw),
      s.draw_number, draft_row, s.rules.presence_penalty, s.rules.frequency_penalty,
      s.rules.repetition_penalty, rules.bias_ids, rules.bias_values, s.rules.min_tokens,
      rules.suppressed_token_ids, all_counts, s.rules.masked);
}

// Whether [first, first + count) lies in [0, size).
bool Within(int64_t first, int64_t count, size_t size) {
  return first >= 0 && count >= 0 && first + count <= static_cast<int64_t>(size);
}

void CheckTree(const PlanSequence& s, const StepPlan& plan, Checker& check) {
  check.Require(s.row_count >= 1 && s.row_count <= speculation::kMaxVerifyNodes, "row_count",
                s.row_count, "1 to 64 of a tree");
  check.Require(s.logit_count == s.row_count, "logit_count", s.logit_count,
                "the row_count of a tree");
  check.Require(s.draft_row.empty() || s.draft_row.size() == static_cast<size_t>(s.row_count),
                "number of draft_row", s.draft_row.size(), "the row_count or 0");
  for (int32_t row : s.draft_row) {
    check.Require(row >= -1 && row < kMaxTreeNodes, "draft_row", row, "in [-1, 256)");
  }
  if (!check.ok()) return;
  for (int32_t i = 0; i < s.row_count; ++i) {
    const int32_t parent = plan.parents[s.first_row + i];
    check.Require(i == 0 ? parent == -1 : parent >= 0 && parent < i, "parents", parent,
                  "an earlier node of its tree");
    check.Require(plan.logit_rows[s.first_logit + i] == s.first_row + i, "logit_rows",
                  plan.logit_rows[s.first_logit + i], "the rows of the tree");
  }
}

void CheckPrefill(const PlanSequence& s, const StepPlan& plan, Checker& check) {
  check.Require(s.draft_row.empty(), "number of draft_row", s.draft_row.size(), "0");
  for (int32_t i = 0; i < s.logit_count; ++i) {
    const int32_t row = plan.logit_rows[s.first_logit + i];
    check.Require(row >= s.first_row && row < s.first_row + s.row_count, "logit_rows", row,
                  "rows of their sequence");
  }
}

PlanSequence CheckedSequence(const wire::PlanSequence& t, const StepPlan& plan, Checker& check) {
  check.AtMost("kind", t.kind(), static_cast<uint8_t>(RowsKind::kTree));
  check.NonNegative("kv_len", t.kv_len());
  check.NonNegative("prompt_size", t.prompt_size());
  check.Require(Within(t.first_row(), t.row_count(), plan.tokens.size()), "first_row",
                t.first_row(), "with row_count within the rows");
  check.Require(Within(t.first_block(), t.block_count(), plan.blocks.size()), "first_block",
                t.first_block(), "with block_count within the blocks");
  check.Require(Within(t.first_logit(), t.logit_count(), plan.logit_rows.size()), "first_logit",
                t.first_logit(), "with logit_count within the logit_rows");
  check.Require(t.logprobs() >= -1 && t.logprobs() <= kMaxTopLogprobs, "logprobs", t.logprobs(),
                "in [-1, 128]");
  check.AtMost("verification", t.verification(), speculation::kVerificationMethods - 1);
  check.AtMost("draw", t.draw(), speculation::kSiblingDraws - 1);
  PlanSequence s;
  s.sampling = wire::FromWire(t.sampling());
  check.Sampling(s.sampling);
  s.rules = wire::CheckedRules(t, check);
  s.rules.masked = t.masked();
  if (!check.ok()) return s;
  s.id = t.id();
  s.kind = static_cast<RowsKind>(t.kind());
  s.kv_len = t.kv_len();
  s.first_row = t.first_row();
  s.row_count = t.row_count();
  s.first_block = t.first_block();
  s.block_count = t.block_count();
  s.first_logit = t.first_logit();
  s.logit_count = t.logit_count();
  s.samples = t.samples();
  s.logprobs = t.logprobs();
  s.prompt_size = t.prompt_size();
  s.verification = static_cast<VerificationMethod>(t.verification());
  s.draw = static_cast<SiblingDraw>(t.draw());
  s.draw_number = t.draw_number();
  s.draft_row = Copy(View(t.draft_row()));
  if (t.counts() != nullptr) {
    for (const wire::TokenCount* count : *t.counts()) {
      check.Require(count->token() >= 0 && count->output() >= 0, "counts", count->token(),
                    "token ids and numbers of at least 0");
      s.counts.push_back({count->token(), count->output()});
    }
  }
  s.kind == RowsKind::kTree ? CheckTree(s, plan, check) : CheckPrefill(s, plan, check);
  return s;
}

// Bytes that the lists of one entry take in the buffer.
size_t BytesOf(const wire::PlanSequence& t) {
  const size_t counts = t.counts() == nullptr ? 0 : t.counts()->size();
  return sizeof(int32_t) * (View(t.draft_row()).size() + View(t.bias_ids()).size() +
                            View(t.bias_values()).size() + View(t.suppressed_token_ids()).size()) +
         sizeof(wire::TokenCount) * counts;
}

size_t BytesOf(const wire::StepDraftProbs& t) { return View(t.bytes()).size(); }

void ReadRows(const wire::Step& t, Checker& check, StepPlan* plan) {
  const auto tokens = View(t.tokens());
  const size_t rows = tokens.size();
  check.Size("tokens", rows, kMaxStepRows);
  check.TokenIds("tokens", tokens);
  check.Require(View(t.positions()).size() == rows && View(t.parents()).size() == rows &&
                    View(t.ancestors()).size() == rows,
                "positions, parents or ancestors", "of another length", "one entry a row");
  const auto logit_rows = View(t.logit_rows());
  wire::CheckAscending("logit_rows", logit_rows, rows, check);
  const auto score_tokens = View(t.score_tokens());
  check.Require(score_tokens.size() == logit_rows.size(), "number of score_tokens",
                score_tokens.size(), "the number of logit_rows");
  for (base::TokenId token : score_tokens) {
    check.Require(token >= base::kNoToken, "score_tokens", token, "token ids or -1");
  }
  check.Size("blocks", View(t.blocks()).size(), kMaxStepBlocks);
  for (int32_t position : View(t.positions())) check.NonNegative("positions", position);
  for (int32_t block : View(t.blocks())) check.NonNegative("blocks", block);
  if (!check.ok()) return;
  plan->step = t.step();
  plan->tokens = Copy(tokens);
  plan->positions = Copy(View(t.positions()));
  plan->parents = Copy(View(t.parents()));
  plan->ancestors = Copy(View(t.ancestors()));
  plan->blocks = Copy(View(t.blocks()));
  plan->logit_rows = Copy(logit_rows);
  plan->score_tokens = Copy(score_tokens);
  if (t.moves() == nullptr) return;
  check.Size("moves", t.moves()->size(), kMaxStepRows);
  for (const wire::SlotMove* move : *t.moves()) {
    check.Require(move->from() >= 0 && move->to() >= 0, "moves", move->from(),
                  "slots of at least 0");
    plan->moves.push_back({move->from(), move->to()});
  }
}

std::vector<StepDraftProbs> CheckedDraftProbs(const wire::Step& t, const StepPlan& plan,
                                              Checker& check) {
  std::vector<StepDraftProbs> all;
  if (t.draft_probs() == nullptr) return all;
  for (const wire::StepDraftProbs* draft_probs : *t.draft_probs()) {
    const int32_t least = all.empty() ? 0 : all.back().sequence + 1;
    check.Require(draft_probs->sequence() >= least &&
                      Within(draft_probs->sequence(), 1, plan.sequences.size()),
                  "sequence of draft probabilities", draft_probs->sequence(),
                  "ascending sequences");
    check.Require(draft_probs->rows() >= 1 && draft_probs->rows() <= kMaxTreeNodes,
                  "rows of draft probabilities", draft_probs->rows(), "in [1, 256]");
    check.Require(draft_probs->entries() >= 1, "entries of draft probabilities",
                  draft_probs->entries(), "at least 1");
    if (!check.ok()) return all;
    all.push_back({draft_probs->sequence(), draft_probs->rows(), draft_probs->entries(),
                   Copy(View(draft_probs->bytes()))});
  }
  return all;
}

}  // namespace

std::vector<uint8_t> Encode(const StepView& m) {
  const StepPlan& plan = *m.plan;
  size_t bytes =
      1024 + 32 * plan.tokens.size() + 4 * plan.blocks.size() + 256 * plan.sequences.size();
  for (const StepDraftProbsView& draft_probs : m.draft_probs) {
    bytes += draft_probs.bytes.size() + 64;
  }
  FlatBufferBuilder builder(bytes);
  std::vector<Offset<wire::StepDraftProbs>> draft_probs;
  for (const StepDraftProbsView& one : m.draft_probs) {
    draft_probs.push_back(
        wire::CreateStepDraftProbs(builder, one.sequence, one.rows, one.entries,
                                   builder.CreateVector(one.bytes.data(), one.bytes.size())));
  }
  std::vector<Offset<wire::PlanSequence>> sequences;
  for (const PlanSequence& s : plan.sequences) sequences.push_back(WriteSequence(s, builder));
  std::vector<wire::SlotMove> moves;
  for (const scheduler::SlotMove& move : plan.moves) moves.emplace_back(move.from, move.to);
  return wire::Finish(
      builder, wire::CreateStepDirect(builder, plan.step, &plan.tokens, &plan.positions,
                                      &plan.parents, &plan.ancestors, &sequences, &plan.blocks,
                                      &plan.logit_rows, &plan.score_tokens, &moves, &draft_probs));
}

std::vector<uint8_t> Encode(const Step& m) {
  StepView view = {.plan = &m.plan, .draft_probs = {}};
  for (const StepDraftProbs& one : m.draft_probs) {
    view.draft_probs.push_back({one.sequence, one.rows, one.entries, one.bytes});
  }
  return Encode(view);
}

template <>
absl::StatusOr<Step> Decode<Step>(absl::Span<const uint8_t> payload) {
  auto table = VerifiedTable<wire::Step>::Open(payload, "Step");
  if (!table.ok()) return table.status();
  const wire::Step& t = *table->operator->();
  Checker check("Step");
  Step m;
  ReadRows(t, check, &m.plan);
  const auto bytes_of = [](const auto& entry) { return BytesOf(entry); };
  if (t.sequences() != nullptr) {
    wire::CheckEntries("sequences", *t.sequences(), kMaxBatchSequences, payload, bytes_of, check);
  }
  if (t.draft_probs() != nullptr) {
    wire::CheckEntries("draft_probs", *t.draft_probs(), kMaxBatchSequences, payload, bytes_of,
                       check);
  }
  if (!check.ok()) return check.status();
  if (t.sequences() != nullptr) {
    for (const wire::PlanSequence* sequence : *t.sequences()) {
      m.plan.sequences.push_back(CheckedSequence(*sequence, m.plan, check));
      if (!check.ok()) return check.status();
    }
  }
  m.draft_probs = CheckedDraftProbs(t, m.plan, check);
  if (!check.ok()) return check.status();
  return m;
}

}  // namespace specfabric::schemas
