#ifndef SPECFABRIC_MODEL_CPU_KEPT_STATES_H_
#define SPECFABRIC_MODEL_CPU_KEPT_STATES_H_

// The residual streams at some boundaries between layers that a pass keeps, of all its rows. Used
// by the rank's thread.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "model/cpu/kernels.h"
#include "model/hidden_states.h"

namespace specfabric::model::cpu {

class KeptStates {
 public:
  // What a model of bfloat16 keeps is rounded at once, as it is sent. `kernels` must outlive it.
  KeptStates(int32_t hidden, DataType dtype, const Kernels& kernels)
      : hidden_(hidden), dtype_(dtype), kernels_(&kernels) {}

  // Boundaries that the model has (CheckBoundaries).
  void Keep(std::vector<int32_t> boundaries);
  bool Keeps(int32_t boundary) const;

  // A pass of `rows` rows begins.
  void Begin(int rows);
  // residual: [rows][hidden], at this boundary. Does nothing if it is not kept.
  void Copy(int32_t boundary, const float* residual);
  // Rounds what the pass has kept into `copy`, whose memory is the host's.
  void Gather(const StateCopy& copy) const;
  // [rows][boundaries][hidden]; empty if they are rounded.
  absl::Span<const float> values() const;

 private:
  int32_t hidden_;
  DataType dtype_;
  const Kernels* kernels_;
  std::vector<int32_t> boundaries_;
  int rows_ = 0;
  // One of the two. They never shrink, so that steady passes allocate nothing.
  std::vector<float> values_;
  std::vector<uint16_t> rounded_;
};

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_KEPT_STATES_H_
