#ifndef SPECFABRIC_MODEL_CPU_PACKED_LINEAR_H_
#define SPECFABRIC_MODEL_CPU_PACKED_LINEAR_H_

// The fast linear layer: weights packed in panels of 64 outputs (layout in cpu/kernels.h), read
// once for up to 64 rows. A row's result has the same bits whatever the other rows are, however
// many threads share the panels and however the outputs are spread over ranks.

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "model/aligned_buffer.h"
#include "model/config.h"
#include "model/cpu/fetch_trial.h"
#include "model/cpu/kernels.h"
#include "model/linear.h"
#include "model/thread_pool.h"

namespace specfabric::model::cpu {

class PackedLinear : public Linear {
 public:
  // Reads all weights now. `kernels` and `pool` must outlive the layer; its Forward must not be
  // called by two threads at once.
  static absl::StatusOr<std::unique_ptr<Linear>> Create(const LinearShape& shape, DataType dtype,
                                                        const WeightReader& read,
                                                        const Kernels& kernels, ThreadPool* pool);

  absl::Status Forward(const float* x, int rows, float* out) override;
  absl::Status ForwardGated(const float* x, int rows, float* out) override;
  // Where a panel holds gates alone or ups alone.
  bool FusesGate() const override { return shape_.outputs % (2 * kPanelOutputs) == 0; }

 private:
  PackedLinear(const LinearShape& shape, DataType dtype, const Kernels& kernels, ThreadPool* pool);

  size_t PanelBytes() const;
  void PackOutput(int32_t output, const float* weights);
  // Of one row as the kernels take it.
  size_t RowBytes() const;
  // x as the kernels take it: as it is, or rounded to pairs of bfloat16 in rounded_.
  const std::byte* PrepareInputs(const float* x, int rows);
  const std::byte* Panel(int panel) const {
    return static_cast<const std::byte*>(weights_.data()) + panel * PanelBytes();
  }
  // Splits `count` panels among the threads and runs them for `rows` rows.
  void RunPanels(int count, int rows, absl::FunctionRef<void(int panel)> run);
  // The panel's outputs for at most kMaxPanelRows rows from `inputs` on; panel `next` is next.
  void RunPanel(int panel, int next, const std::byte* inputs, int rows, float* out,
                int out_stride) const;
  // Gates and ups of panels `panel` and half of all panels further on.
  void RunGatedPanel(int panel, const std::byte* inputs, int rows, float* out) const;

  const LinearShape shape_;
  const DataType dtype_;
  const Kernels& kernels_;
  ThreadPool* const pool_;
  const int part_inputs_;
  const int steps_;  // of one part; two inputs each in bfloat16
  AlignedBuffer weights_;
  std::vector<uint16_t> rounded_;  // [rows][parts][steps][2]
  FetchTrial trial_;               // by passes of a few rows
};

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_PACKED_LINEAR_H_
