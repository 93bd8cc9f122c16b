#include "model/cpu/packed_linear.h"

#include <algorithm>
#include <utility>

#include "model/bfloat16.h"

namespace specfabric::model::cpu {

PackedLinear::PackedLinear(const LinearShape& shape, DataType dtype, const Kernels& kernels,
                           ThreadPool* pool)
    : shape_(shape),
      dtype_(dtype),
      kernels_(kernels),
      pool_(pool),
      part_inputs_(shape.inputs / shape.parts),
      steps_(dtype == DataType::kFloat32 ? part_inputs_ : (part_inputs_ + 1) / 2) {}

absl::StatusOr<std::unique_ptr<Linear>> PackedLinear::Create(const LinearShape& shape,
                                                             DataType dtype,
                                                             const WeightReader& read,
                                                             const Kernels& kernels,
                                                             ThreadPool* pool) {
  std::unique_ptr<PackedLinear> linear(new PackedLinear(shape, dtype, kernels, pool));
  const size_t panels = (shape.outputs + kPanelOutputs - 1) / kPanelOutputs;
  absl::StatusOr<AlignedBuffer> buffer = AlignedBuffer::Create(panels * linear->PanelBytes());
  if (!buffer.ok()) return buffer.status();
  linear->weights_ = *std::move(buffer);

  std::vector<float> weights(shape.inputs);
  for (int32_t output = 0; output < shape.outputs; ++output) {
    read(output, weights.data());
    linear->PackOutput(output, weights.data());
  }
  return linear;
}

// Both kinds of step take four bytes for each output.
size_t PackedLinear::PanelBytes() const {
  return size_t{4} * kPanelOutputs * shape_.parts * steps_;
}

void PackedLinear::PackOutput(int32_t output, const float* weights) {
  const int lane = output % kPanelOutputs;
  std::byte* panel = static_cast<std::byte*>(weights_.data()) +
                     static_cast<size_t>(output / kPanelOutputs) * PanelBytes();
  for (int part = 0; part < shape_.parts; ++part) {
    const float* from = weights + part * part_inputs_;
    const size_t first_step = static_cast<size_t>(part) * steps_;
    if (dtype_ == DataType::kFloat32) {
      float* to = reinterpret_cast<float*>(panel) + first_step * kPanelOutputs + lane;
      for (int i = 0; i < part_inputs_; ++i) to[static_cast<size_t>(i) * kPanelOutputs] = from[i];
    } else {
      uint16_t* to = reinterpret_cast<uint16_t*>(panel) + (first_step * kPanelOutputs + lane) * 2;
      for (int i = 0; i < part_inputs_; ++i) {
        to[static_cast<size_t>(i / 2) * kPanelOutputs * 2 + i % 2] = RoundToBFloat16(from[i]);
      }
    }
  }
}

size_t PackedLinear::RowBytes() const { return size_t{4} * shape_.parts * steps_; }

const std::byte* PackedLinear::PrepareInputs(const float* x, int rows) {
  if (dtype_ == DataType::kFloat32) return reinterpret_cast<const std::byte*>(x);
  const size_t part_elements = static_cast<size_t>(steps_) * 2;
  const size_t needed = rows * shape_.parts * part_elements;
  // Elements that pad a part of odd length are never written, hence stay zero.
  if (rounded_.size() < needed) rounded_.resize(needed);
  for (int run = 0; run < rows * shape_.parts; ++run) {
    kernels_.round_bfloat16(x + static_cast<size_t>(run) * part_inputs_, part_inputs_,
                            rounded_.data() + run * part_elements);
  }
  return reinterpret_cast<const std::byte*>(rounded_.data());
}

void PackedLinear::RunPanel(int panel, int next, const std::byte* inputs, int rows, float* out,
                            int out_stride) const {
  PanelArgs args;
  args.weights = Panel(panel);
  args.next = Panel(next);
  args.x = inputs;
  args.rows = rows;
  args.parts = shape_.parts;
  args.steps = steps_;
  args.out = out;
  args.out_stride = out_stride;
  args.outputs = std::min(kPanelOutputs, shape_.outputs - panel * kPanelOutputs);
  args.fetches = trial_.fetches();
  if (dtype_ == DataType::kFloat32) {
    kernels_.panel_float32(args);
  } else {
    kernels_.panel_bfloat16(args);
  }
}

void PackedLinear::RunPanels(int count, int rows, absl::FunctionRef<void(int panel)> run) {
  const base::Nanos begin = base::Now();
  pool_->Run(count, [&](int, int first, int end) {
    for (int panel = first; panel < end; ++panel) run(panel);
  });
  if (rows <= kernels_.few_rows && !trial_.settled()) trial_.Observe(base::Now() - begin);
}

absl::Status PackedLinear::Forward(const float* x, int rows, float* out) {
  if (rows == 0) return absl::OkStatus();
  const std::byte* inputs = PrepareInputs(x, rows);
  const int panels = (shape_.outputs + kPanelOutputs - 1) / kPanelOutputs;
  RunPanels(panels, rows, [&](int panel) {
    for (int row = 0; row < rows; row += kMaxPanelRows) {
      RunPanel(panel, panel + 1, inputs + row * RowBytes(), std::min(kMaxPanelRows, rows - row),
               out + static_cast<size_t>(row) * shape_.outputs + panel * kPanelOutputs,
               shape_.outputs);
    }
  });
  return absl::OkStatus();
}

void PackedLinear::RunGatedPanel(int panel, const std::byte* inputs, int rows, float* out) const {
  const int features = shape_.outputs / 2;
  float gate[kMaxPanelRows][kPanelOutputs], up[kMaxPanelRows][kPanelOutputs];
  const int up_panel = panel + features / kPanelOutputs;
  RunPanel(panel, up_panel, inputs, rows, gate[0], kPanelOutputs);
  RunPanel(up_panel, panel + 1, inputs, rows, up[0], kPanelOutputs);
  for (int row = 0; row < rows; ++row) {
    kernels_.silu_multiply(gate[row], up[row], kPanelOutputs,
                           out + static_cast<size_t>(row) * features + panel * kPanelOutputs);
  }
}

absl::Status PackedLinear::ForwardGated(const float* x, int rows, float* out) {
  if (rows == 0) return absl::OkStatus();
  const std::byte* inputs = PrepareInputs(x, rows);
  const int features = shape_.outputs / 2;
  RunPanels(features / kPanelOutputs, rows, [&](int panel) {
    for (int row = 0; row < rows; row += kMaxPanelRows) {
      RunGatedPanel(panel, inputs + row * RowBytes(), std::min(kMaxPanelRows, rows - row),
                    out + static_cast<size_t>(row) * features);
    }
  });
  return absl::OkStatus();
}

}  // namespace specfabric::model::cpu
