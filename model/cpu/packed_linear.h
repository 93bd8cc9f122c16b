#ifndef SPECFABRIC_MODEL_CPU_PACKED_LINEAR_H_
#define SPECFABRIC_MODEL_CPU_PACKED_LINEAR_H_

// The fast linear layer: weights packed in panels of 32 outputs (layout in cpu/kernels.h), read
// once for up to 64 rows; those in bfloat16 in three quarters of their bytes where the kernels can
// decode them. A row's result has the same bits whatever the other rows are, however
// many threads share the panels and however the outputs are spread over ranks.

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/config.h"
#include "model/cpu/aligned_buffer.h"
#include "model/cpu/compressed_panels.h"
#include "model/cpu/fetch_trial.h"
#include "model/cpu/kernels.h"
#include "model/cpu/packed_inputs.h"
#include "model/cpu/thread_pool.h"
#include "model/linear.h"

namespace specfabric::model::cpu {

class PackedLinear : public Linear {
 public:
  // Reads all weights now. `kernels` and `pool` must outlive the layer; its Forward must not be
  // called by two threads at once.
  static absl::StatusOr<std::unique_ptr<Linear>> Create(const LinearShape& shape, DataType dtype,
                                                        const WeightReader& read,
                                                        const Kernels& kernels, ThreadPool* pool);

  absl::Status Forward(const float* x, int rows, float* out) override;
  absl::Status ForwardGated(Linear* gate_up, const float* x, int rows, float* out) override;
  // Where a panel of it holds gates alone or ups alone, and inputs of one part.
  bool FusesGates(const Linear& gate_up) const override;

 private:
  PackedLinear(const LinearShape& shape, DataType dtype, const Kernels& kernels, ThreadPool* pool);

  size_t PanelBytes() const;
  // Exchanges weights_ for compressed_ where that saves reading.
  absl::Status Compress();
  void PackOutput(int32_t output, const float* weights);
  int Panels() const { return (shape_.outputs + kPanelOutputs - 1) / kPanelOutputs; }
  // Where panels of gates alone and of ups alone are kept in turns.
  bool Alternates() const { return shape_.gated && shape_.outputs % (2 * kPanelOutputs) == 0; }
  // The place of a panel among them as they are kept, which is the order they are read in.
  int Place(int panel) const;
  size_t PanelOffset(int place) const { return place * PanelBytes(); }
  // Splits `count` groups of panels among the threads and runs each for the rows of every call.
  void RunPanels(int rows, int count, absl::FunctionRef<void(int group, int row, int rows)> run);
  // out = W x of the inputs that inputs_ holds.
  void MultiplyPacked(int rows, float* out);
  // How many panels share what they read of inputs of `rows` rows.
  int PanelsTogether(int rows) const;
  // The panel at `place` for at most kMaxPanelRows rows from `row` on.
  PanelArgs ArgsOf(int place, int outputs, int row, int rows, float* out, int out_stride) const;
  void RunKernel(const PanelArgs* panels, int count) const;
  // Writes what panel `panel` of gates and its ups give to `next`, whose inputs they are.
  void RunGatedPanel(int panel, int row, int rows, PackedInputs* next) const;

  const LinearShape shape_;
  const DataType dtype_;
  const Kernels& kernels_;
  ThreadPool* const pool_;
  const int part_inputs_;
  AlignedBuffer weights_;  // or
  std::optional<CompressedPanels> compressed_;
  PackedInputs inputs_;
  std::vector<FetchTrial> trials_;  // of passes of 1, 2, ... rows of a block
};

}  // namespace specfabric::model::cpu

#endif  // SPECFABRIC_MODEL_CPU_PACKED_LINEAR_H_
