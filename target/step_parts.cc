#include "target/step_parts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace specfabric::target {

using scheduler::PlanSequence;
using scheduler::StepPlan;

namespace {

absl::Status OutOfRange(absl::string_view what, int64_t value) {
  return absl::InvalidArgumentError(absl::StrCat("step: ", what, " ", value, " is out of range"));
}

absl::Status CheckTokens(const StepPlan& plan, int32_t vocabulary) {
  for (base::TokenId token : plan.score_tokens) {
    if (token >= vocabulary) return OutOfRange("scored token", token);
  }
  for (const PlanSequence& s : plan.sequences) {
    for (const base::LogitBias& bias : s.rules.bias) {
      if (bias.token >= vocabulary) return OutOfRange("biased token", bias.token);
    }
    for (base::TokenId token : s.rules.suppressed_token_ids) {
      if (token >= vocabulary) return OutOfRange("suppressed token", token);
    }
    for (const sampling::TokenCount& count : s.counts) {
      if (count.token >= vocabulary) return OutOfRange("counted token", count.token);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRows(const PlanSequence& sequence, const speculation::DraftProbsShape& shape) {
  if (sequence.draft_row.empty()) return OutOfRange("number of draft rows", 0);
  for (int32_t row : sequence.draft_row) {
    if (row >= shape.rows) return OutOfRange("draft row", row);
  }
  return absl::OkStatus();
}

}  // namespace

schemas::StepView MakeStep(const StepPlan& plan,
                           absl::Span<const speculation::DraftProbs* const> draft_probs,
                           const RankRange& to) {
  schemas::StepView step;
  step.plan = &plan;
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    if (!ReadsDraftProbs(plan.sequences[s]) || !to.Owns(plan.sequences[s])) continue;
    const speculation::DraftProbsShape& shape = draft_probs[s]->shape();
    step.draft_probs.push_back(
        {static_cast<int32_t>(s), shape.rows, shape.entries, draft_probs[s]->bytes()});
  }
  return step;
}

absl::StatusOr<OpenDraftProbs> OpenStep(const schemas::Step& step, int32_t vocabulary,
                                        int64_t slots, const RankRange& here) {
  const StepPlan& plan = step.plan;
  if (absl::Status tokens = CheckTokens(plan, vocabulary); !tokens.ok()) return tokens;
  for (const scheduler::SlotMove& move : plan.moves) {
    if (std::max(move.from, move.to) >= slots)
      return OutOfRange("slot", std::max(move.from, move.to));
  }
  OpenDraftProbs draft_probs;
  draft_probs.by_sequence.resize(plan.sequences.size());
  std::vector<bool> received(plan.sequences.size(), false);
  draft_probs.opened.reserve(step.draft_probs.size());  // they are pointed to
  for (const schemas::StepDraftProbs& one : step.draft_probs) {
    if (one.entries > vocabulary) return OutOfRange("entries of draft probabilities", one.entries);
    const speculation::DraftProbsShape shape = {one.rows, vocabulary, one.entries};
    absl::Status size = speculation::CheckSize(shape, one.bytes.size());
    if (!size.ok()) return size;
    const PlanSequence& reader = plan.sequences[one.sequence];
    if (!ReadsDraftProbs(reader) || !here.Owns(reader)) continue;
    if (absl::Status fits = CheckRows(reader, shape); !fits.ok()) return fits;
    received[one.sequence] = true;
    // The leader has validated them, but the draft may have changed them before they were copied:
    // an error of the draft, which must not end this group.
    auto opened = speculation::DraftProbs::Open(shape, one.bytes);
    if (!opened.ok()) continue;
    draft_probs.opened.push_back(*std::move(opened));
    draft_probs.by_sequence[one.sequence] = &draft_probs.opened.back();
  }
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    const PlanSequence& sequence = plan.sequences[s];
    if (!ReadsDraftProbs(sequence) || !here.Owns(sequence) || received[s]) continue;
    return absl::InvalidArgumentError("step: draft probabilities are missing");
  }
  return draft_probs;
}

schemas::StepDone MakeDone(const StepPlan& plan, const VerifyResult& verify_result) {
  schemas::StepDone done;
  done.step = plan.step;
  for (int32_t l = 0; l < static_cast<int32_t>(verify_result.chosen.size()); ++l) {
    if (verify_result.chosen[l] == VerifyResult::kNotFinite) {
      done.not_finite_logits.push_back(l);
    } else if (verify_result.chosen[l] != base::kNoToken) {
      done.chosen_logits.push_back(l);
      done.chosen.push_back(verify_result.chosen[l]);
    }
    if (verify_result.logprobs[l].token != base::kNoToken) {
      done.scored_logits.push_back(l);
      done.logprobs.push_back(verify_result.logprobs[l]);
    }
  }
  for (int32_t s = 0; s < static_cast<int32_t>(verify_result.accepted.size()); ++s) {
    if (VerifyResult::Decided(verify_result.accepted[s]))
      done.trees.push_back({s, verify_result.accepted[s]});
  }
  return done;
}

absl::Status MergeDone(const StepPlan& plan, const schemas::StepDone& done, int32_t vocabulary,
                       VerifyResult* verify_result) {
  if (!done.error.empty()) return absl::InternalError(done.error);
  if (done.step != plan.step) return OutOfRange("number", static_cast<int64_t>(done.step));
  const auto logits = static_cast<int32_t>(plan.logit_rows.size());
  for (size_t i = 0; i < done.chosen.size(); ++i) {
    if (done.chosen_logits[i] >= logits) return OutOfRange("logit", done.chosen_logits[i]);
    if (done.chosen[i] >= vocabulary) return OutOfRange("token", done.chosen[i]);
    verify_result->chosen[done.chosen_logits[i]] = done.chosen[i];
  }
  for (int32_t logit : done.not_finite_logits) {
    if (logit >= logits) return OutOfRange("logit", logit);
    verify_result->chosen[logit] = VerifyResult::kNotFinite;
  }
  for (size_t i = 0; i < done.logprobs.size(); ++i) {
    if (done.scored_logits[i] >= logits) return OutOfRange("logit", done.scored_logits[i]);
    verify_result->logprobs[done.scored_logits[i]] = done.logprobs[i];
  }
  for (const schemas::StepTree& tree : done.trees) {
    if (tree.sequence >= static_cast<int32_t>(plan.sequences.size())) {
      return OutOfRange("sequence", tree.sequence);
    }
    for (int32_t node : tree.accepted.path) {
      if (node >= plan.sequences[tree.sequence].row_count) return OutOfRange("node", node);
    }
    for (base::TokenId token : tree.accepted.tokens) {
      if (token >= vocabulary) return OutOfRange("token", token);
    }
    verify_result->accepted[tree.sequence] = tree.accepted;
  }
  return absl::OkStatus();
}

}  // namespace specfabric::target
