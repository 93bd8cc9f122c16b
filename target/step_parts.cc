#include "target/step_parts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace specfabric::target {

using scheduler::PlanSequence;
using scheduler::StepPlan;

namespace {

absl::Status Misfit(absl::string_view what, int64_t value) {
  return absl::InvalidArgumentError(absl::StrCat("step: ", what, " ", value, " is out of range"));
}

absl::Status CheckTokens(const StepPlan& plan, int32_t vocabulary) {
  for (base::TokenId token : plan.score_tokens) {
    if (token >= vocabulary) return Misfit("scored token", token);
  }
  for (const PlanSequence& s : plan.sequences) {
    for (const base::LogitBias& bias : s.rules.bias) {
      if (bias.token >= vocabulary) return Misfit("biased token", bias.token);
    }
    for (base::TokenId token : s.rules.barred_ids) {
      if (token >= vocabulary) return Misfit("barred token", token);
    }
    for (const speculation::TokenCount& count : s.counts) {
      if (count.token >= vocabulary) return Misfit("counted token", count.token);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRows(const PlanSequence& sequence, const schemas::DraftWeightsShape& shape) {
  if (sequence.weight_row.empty()) return Misfit("number of weight rows", 0);
  for (int32_t row : sequence.weight_row) {
    if (row >= shape.rows) return Misfit("weight row", row);
  }
  return absl::OkStatus();
}

}  // namespace

schemas::Step MakeStep(const StepPlan& plan, absl::Span<const schemas::DraftWeights* const> weights,
                       const RankRange& to) {
  schemas::Step step;
  step.plan = plan;
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    if (!ReadsWeights(plan.sequences[s]) || !to.Owns(plan.sequences[s])) continue;
    const schemas::DraftWeightsShape& shape = weights[s]->shape();
    const auto bytes = weights[s]->bytes();
    step.weights.push_back({static_cast<int32_t>(s), shape.rows, shape.entries,
                            std::vector<uint8_t>(bytes.begin(), bytes.end())});
  }
  return step;
}

absl::StatusOr<OpenWeights> OpenStep(const schemas::Step& step, int32_t vocabulary, int64_t slots,
                                     const RankRange& here) {
  const StepPlan& plan = step.plan;
  if (absl::Status tokens = CheckTokens(plan, vocabulary); !tokens.ok()) return tokens;
  for (const scheduler::SlotMove& move : plan.moves) {
    if (std::max(move.from, move.to) >= slots) return Misfit("slot", std::max(move.from, move.to));
  }
  OpenWeights weights;
  weights.by_sequence.resize(plan.sequences.size());
  std::vector<bool> received(plan.sequences.size(), false);
  weights.opened.reserve(step.weights.size());  // they are pointed to
  for (const schemas::StepWeights& one : step.weights) {
    if (one.entries > vocabulary) return Misfit("entries of weights", one.entries);
    const schemas::DraftWeightsShape shape = {one.rows, vocabulary, one.entries};
    absl::Status size = schemas::CheckSize(shape, one.bytes.size());
    if (!size.ok()) return size;
    const PlanSequence& reader = plan.sequences[one.sequence];
    if (!ReadsWeights(reader) || !here.Owns(reader)) continue;
    if (absl::Status fits = CheckRows(reader, shape); !fits.ok()) return fits;
    received[one.sequence] = true;
    // The leader has validated them, but their sender may have changed them before they were copied
    // here: the draft's fault, not this group's.
    auto opened = schemas::DraftWeights::Open(shape, one.bytes);
    if (!opened.ok()) continue;
    weights.opened.push_back(*std::move(opened));
    weights.by_sequence[one.sequence] = &weights.opened.back();
  }
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    const PlanSequence& sequence = plan.sequences[s];
    if (!ReadsWeights(sequence) || !here.Owns(sequence) || received[s]) continue;
    return absl::InvalidArgumentError("step: weights of a draft are missing");
  }
  return weights;
}

schemas::StepDone MakeDone(const StepPlan& plan, const Verdict& verdict) {
  schemas::StepDone done;
  done.step = plan.step;
  for (int32_t l = 0; l < static_cast<int32_t>(verdict.chosen.size()); ++l) {
    if (verdict.chosen[l] == Verdict::kNotFinite) {
      done.not_finite_logits.push_back(l);
    } else if (verdict.chosen[l] != base::kNoToken) {
      done.chosen_logits.push_back(l);
      done.chosen.push_back(verdict.chosen[l]);
    }
    if (verdict.logprobs[l].token != base::kNoToken) {
      done.scored_logits.push_back(l);
      done.logprobs.push_back(verdict.logprobs[l]);
    }
  }
  for (int32_t s = 0; s < static_cast<int32_t>(verdict.accepted.size()); ++s) {
    if (Verdict::Decided(verdict.accepted[s])) done.trees.push_back({s, verdict.accepted[s]});
  }
  return done;
}

absl::Status MergeDone(const StepPlan& plan, const schemas::StepDone& done, int32_t vocabulary,
                       Verdict* verdict) {
  if (!done.error.empty()) return absl::InternalError(done.error);
  if (done.step != plan.step) return Misfit("number", static_cast<int64_t>(done.step));
  const auto logits = static_cast<int32_t>(plan.logit_rows.size());
  for (size_t i = 0; i < done.chosen.size(); ++i) {
    if (done.chosen_logits[i] >= logits) return Misfit("logit", done.chosen_logits[i]);
    if (done.chosen[i] >= vocabulary) return Misfit("token", done.chosen[i]);
    verdict->chosen[done.chosen_logits[i]] = done.chosen[i];
  }
  for (int32_t logit : done.not_finite_logits) {
    if (logit >= logits) return Misfit("logit", logit);
    verdict->chosen[logit] = Verdict::kNotFinite;
  }
  for (size_t i = 0; i < done.logprobs.size(); ++i) {
    if (done.scored_logits[i] >= logits) return Misfit("logit", done.scored_logits[i]);
    verdict->logprobs[done.scored_logits[i]] = done.logprobs[i];
  }
  for (const schemas::StepTree& tree : done.trees) {
    if (tree.sequence >= static_cast<int32_t>(plan.sequences.size())) {
      return Misfit("sequence", tree.sequence);
    }
    for (int32_t node : tree.accepted.path) {
      if (node >= plan.sequences[tree.sequence].row_count) return Misfit("node", node);
    }
    for (base::TokenId token : tree.accepted.tokens) {
      if (token >= vocabulary) return Misfit("token", token);
    }
    verdict->accepted[tree.sequence] = tree.accepted;
  }
  return absl::OkStatus();
}

}  // namespace specfabric::target
