#include "model/cpu/draft_vocabulary.h"

#include <cstddef>
#include <limits>

namespace specfabric::model::cpu {

const float* DraftVocabulary::Spread(const float* logits, int rows) {
  if (target_ids_.empty()) return logits;
  const size_t vocabulary = vocabulary_, count = target_ids_.size();
  // What is never scored is set once: the same places in every row of every pass.
  if (spread_.size() < rows * vocabulary) {
    spread_.resize(rows * vocabulary, -std::numeric_limits<float>::infinity());
  }
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    for (size_t i = 0; i < count; ++i) {
      spread_[row * vocabulary + target_ids_[i]] = logits[row * count + i];
    }
  }
  return spread_.data();
}

}  // namespace specfabric::model::cpu
