#ifndef SPECFABRIC_MODEL_CPU_DRAFT_VOCABULARY_H_
#define SPECFABRIC_MODEL_CPU_DRAFT_VOCABULARY_H_

// The head of a drafter scores some of its target's tokens. Used by the rank's thread.

#include <cstdint>
#include <utility>
#include <vector>

#include "base/types.h"

namespace specfabric::model::cpu {

class DraftVocabulary {
 public:
  // target_ids: as OpenedDrafter's. vocabulary: the target's.
  DraftVocabulary(std::vector<base::TokenId> target_ids, int32_t vocabulary)
      : target_ids_(std::move(target_ids)), vocabulary_(vocabulary) {}

  // The logits of the target's vocabulary, [rows][vocabulary], of those of the draft's,
  // [rows][draft vocabulary]: minus infinity for what the head does not score. Valid until the next
  // call, as `logits` are.
  const float* Spread(const float* logits, int rows);

 private:
  std::vector<base::TokenId> target_ids_;  // empty: the same
  int32_t vocabulary_;
  std::vector<float> spread_;  // [rows][vocabulary], kept so that steady passes allocate nothing
};

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_DRAFT_VOCABULARY_H_
