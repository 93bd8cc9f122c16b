#ifndef SPECFABRIC_MODEL_CPU_KEPT_STATES_H_
#define SPECFABRIC_MODEL_CPU_KEPT_STATES_H_

// The residual streams at some boundaries between layers that a pass keeps, of all its rows. Used
// by the rank's thread.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "model/hidden_states.h"

namespace specfabric::model::cpu {

class KeptStates {
 public:
  explicit KeptStates(int32_t hidden) : hidden_(hidden) {}

  // Boundaries that the model has (CheckBoundaries).
  void Keep(std::vector<int32_t> boundaries);
  bool Keeps(int32_t boundary) const;

  // A pass of `rows` rows begins.
  void Begin(int rows);
  // residual: [rows][hidden], at this boundary. Does nothing if it is not kept.
  void Copy(int32_t boundary, const float* residual);
  // Rounds what the pass has kept into `copy`, whose memory is the host's.
  void Gather(const StateCopy& copy) const;
  // [rows][boundaries][hidden]
  absl::Span<const float> values() const;

 private:
  int32_t hidden_;
  std::vector<int32_t> boundaries_;
  int rows_ = 0;
  std::vector<float> values_;  // never shrinks, so that steady passes allocate nothing
};

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_KEPT_STATES_H_
