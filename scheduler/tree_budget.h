#ifndef SPECFABRIC_SCHEDULER_TREE_BUDGET_H_
#define SPECFABRIC_SCHEDULER_TREE_BUDGET_H_

// How many guesses of which sequences a step verifies, none included: as many as maximise the
// expected tokens a second,
//   (sum over sequences of value * (1 + expected accepted guesses)) / time(rows, context),
// after TurboSpec (arXiv 2406.14066) and AdaServe (arXiv 2501.12162). Each guess's worth is the
// chance that its whole path is accepted, so the best are taken first and the worth of n rows is
// concave in n; the time need not be. Pure.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/step_time.h"
#include "speculation/tree.h"

namespace specfabric::scheduler {

struct TreeOffer {
  const speculation::TokenTree* tree = nullptr;
  absl::Span<const float> chances;  // [nodes] of acceptance, given the parent's
  // Any subtree may be verified. Otherwise the first nodes in draw order, whatever they are worth.
  bool any_subtree = true;
  float value = 1.0f;  // of a token of this sequence, beside the others'
};

struct TreeBudget {
  // [offers] nodes to verify, ascending; the root (always verified) is not among them. Parents are
  // there where their children are.
  std::vector<std::vector<int32_t>> nodes;
  double expected = 0;  // accepted guesses, all together
};

// rows, context: of the step without guesses. At most max_rows in all.
TreeBudget ShareRows(absl::Span<const TreeOffer> offers, int32_t rows, int64_t context,
                     int32_t max_rows, const StepTime& time);

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_TREE_BUDGET_H_
