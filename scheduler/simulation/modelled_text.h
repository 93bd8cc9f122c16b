#ifndef SPECFABRIC_SCHEDULER_SIMULATION_MODELLED_TEXT_H_
#define SPECFABRIC_SCHEDULER_SIMULATION_MODELLED_TEXT_H_

// Texts without a model, for simulation and benchmarks. The text of a sequence is a function of
// (seed, sequence, position). At every position the drafter's tokens are sorted by probability: the
// first is right with some chance, and each further one takes a share of what is left. That chance
// varies from position to position, and is the drafter's score of the token. Pure.

#include <cstdint>
#include <limits>

#include "base/types.h"
#include "scheduler/step_plan.h"
#include "speculation/tree.h"

namespace specfabric::scheduler {

struct Acceptance {
  double first = 0.7;    // mean chance of the first draft token, if its parent was right
  double further = 0.4;  // share of what is left that each further sibling takes
  double spread = 0.25;  // the chance of the first is uniform in [first - spread, first + spread],
                         // clamped to [.01, .99]
  // From this position of a text on, `first` is first_after.
  int32_t shift_position = std::numeric_limits<int32_t>::max();
  double first_after = 0;
};

class ModelledText {
 public:
  // The child number `index` of any node is token 1 + index. Where no draft token is right the text
  // has token 0.
  static constexpr int32_t kVocabulary = 1 + speculation::kMaxDraftNodes;
  static base::TokenId DraftToken(int index) { return 1 + index; }

  ModelledText(const Acceptance& acceptance, uint64_t seed)
      : acceptance_(acceptance), seed_(seed) {}

  // The chance that the draft token of this index is right.
  double Chance(uint64_t sequence, int32_t position, int index) const;
  base::TokenId Token(uint64_t sequence, int32_t position) const;
  // The result of a step: the path of right draft tokens and the token after it. Sequence s of the
  // plan has the text of first_sequence + s.
  StepResult Verify(const StepPlan& plan, uint64_t first_sequence = 0) const;

 private:
  const Acceptance acceptance_;
  const uint64_t seed_;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_SIMULATION_MODELLED_TEXT_H_
