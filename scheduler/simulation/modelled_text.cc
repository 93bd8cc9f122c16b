#include "scheduler/simulation/modelled_text.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace specfabric::scheduler {
namespace {

using base::TokenId;

double Uniform(uint64_t seed, uint64_t sequence, uint64_t position, uint64_t what) {
  const uint64_t bits =
      base::Mix64(seed ^ base::Mix64(sequence ^ base::Mix64(position ^ base::Mix64(what))));
  return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
}

}  // namespace

double ModelledText::Chance(uint64_t sequence, int32_t position, int index) const {
  const double shift = acceptance_.spread * (2 * Uniform(seed_, sequence, position, 0) - 1);
  const double mean =
      position < acceptance_.shift_position ? acceptance_.first : acceptance_.first_after;
  const double first = std::clamp(mean + shift, 0.01, 0.99);
  if (index == 0) return first;
  return (1 - first) * acceptance_.further * std::pow(1 - acceptance_.further, index - 1);
}

TokenId ModelledText::Token(uint64_t sequence, int32_t position) const {
  double left = Uniform(seed_, sequence, position, 1);
  for (int index = 0; index < 16; ++index) {
    left -= Chance(sequence, position, index);
    if (left < 0) return DraftToken(index);
  }
  return 0;
}

StepResult ModelledText::Verify(const StepPlan& plan, uint64_t first_sequence) const {
  StepResult result;
  result.step = plan.step;
  for (const PlanSequence& part : plan.sequences) {
    SequenceResult found;
    found.id = part.id;
    const auto choice = [&](int32_t row) {
      return Token(first_sequence + part.id, plan.positions[part.first_row + row] + 1);
    };
    if (part.kind == RowsKind::kPrefill) {
      if (part.samples) found.accepted.tokens = {choice(part.row_count - 1)};
    } else {
      speculation::TokenTree tree;
      std::vector<TokenId> chosen;
      for (int32_t row = 0; row < part.row_count; ++row) {
        tree.tokens.push_back(plan.tokens[part.first_row + row]);
        tree.parents.push_back(plan.parents[part.first_row + row]);
        tree.scores.push_back(0);
        chosen.push_back(choice(row));
      }
      found.accepted = speculation::WalkCoupled(tree, chosen);
    }
    result.sequences.push_back(std::move(found));
  }
  return result;
}

}  // namespace specfabric::scheduler
