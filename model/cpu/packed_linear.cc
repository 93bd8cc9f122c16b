#include "model/cpu/packed_linear.h"

#include <algorithm>
#include <utility>

#include "model/checkpoint/float16.h"

namespace specfabric::model::cpu {
namespace {

// Bytes of a call's inputs that a core's L2 does not keep beside the weights: of 2 MiB or so.
constexpr size_t kSharedInputs = 1 << 20;

}  // namespace

PackedLinear::PackedLinear(const LinearShape& shape, DataType dtype, const Kernels& kernels,
                           ThreadPool* pool)
    : shape_(shape),
      dtype_(dtype),
      kernels_(kernels),
      pool_(pool),
      part_inputs_(shape.inputs / shape.parts),
      inputs_(dtype, shape.parts, part_inputs_, kernels, pool),
      trials_(inputs_.block_rows()) {}

absl::StatusOr<std::unique_ptr<Linear>> PackedLinear::Create(const LinearShape& shape,
                                                             DataType dtype,
                                                             const WeightReader& read,
                                                             const Kernels& kernels,
                                                             ThreadPool* pool) {
  std::unique_ptr<PackedLinear> linear(new PackedLinear(shape, dtype, kernels, pool));
  absl::StatusOr<AlignedBuffer> buffer =
      AlignedBuffer::Create(linear->PanelOffset(linear->Panels()));
  if (!buffer.ok()) return buffer.status();
  linear->weights_ = *std::move(buffer);

  std::vector<float> weights(shape.inputs);
  for (int32_t output = 0; output < shape.outputs; ++output) {
    read(output, weights.data());
    linear->PackOutput(output, weights.data());
  }
  const absl::Status status = linear->Compress();
  if (!status.ok()) return status;
  return linear;
}

absl::Status PackedLinear::Compress() {
  if (dtype_ != DataType::kBFloat16 || kernels_.panels_compressed == nullptr) {
    return absl::OkStatus();
  }
  auto compressed = CompressedPanels::Compress(static_cast<const uint16_t*>(weights_.data()),
                                               Panels(), shape_.parts, inputs_.steps(), pool_);
  if (!compressed.ok()) return compressed.status();
  compressed_ = *std::move(compressed);
  if (compressed_) weights_ = AlignedBuffer();
  return absl::OkStatus();
}

// Both kinds of step take four bytes for each output.
size_t PackedLinear::PanelBytes() const {
  return size_t{4} * kPanelOutputs * shape_.parts * inputs_.steps();
}

int PackedLinear::Place(int panel) const {
  if (!Alternates()) return panel;
  const int half = Panels() / 2;
  return panel < half ? 2 * panel : 2 * (panel - half) + 1;
}

void PackedLinear::PackOutput(int32_t output, const float* weights) {
  const int lane = output % kPanelOutputs;
  std::byte* panel =
      static_cast<std::byte*>(weights_.data()) + PanelOffset(Place(output / kPanelOutputs));
  for (int part = 0; part < shape_.parts; ++part) {
    const float* from = weights + part * part_inputs_;
    const size_t first_step = static_cast<size_t>(part) * inputs_.steps();
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

PanelArgs PackedLinear::ArgsOf(int place, int outputs, int row, int rows, float* out,
                               int out_stride) const {
  PanelArgs args;
  if (compressed_) {
    compressed_->Fill(place, &args);
  } else {
    const auto* weights = static_cast<const std::byte*>(weights_.data());
    args.weights = weights + PanelOffset(place);
    args.next = weights + PanelOffset(place + 1);
  }
  args.x = inputs_.Call(row);
  args.rows = rows;
  args.blocks = inputs_.Blocks(rows);
  args.parts = shape_.parts;
  args.steps = inputs_.steps();
  args.out = out;
  args.out_stride = out_stride;
  args.outputs = outputs;
  args.fetches = args.blocks > 1 || trials_[rows - 1].fetches();
  return args;
}

void PackedLinear::RunKernel(const PanelArgs* panels, int count) const {
  if (dtype_ == DataType::kFloat32) {
    kernels_.panels_float32(panels, count);
  } else if (compressed_) {
    kernels_.panels_compressed(panels, count);
  } else {
    kernels_.panels_bfloat16(panels, count);
  }
}

int PackedLinear::PanelsTogether(int rows) const {
  if (!inputs_.tiles() || inputs_.Bytes(std::min(rows, kMaxPanelRows)) <= kSharedInputs) return 1;
  return std::clamp(Panels() / pool_->threads(), 1, kMaxPanelsTogether);
}

void PackedLinear::RunPanels(int rows, int count,
                             absl::FunctionRef<void(int group, int row, int rows)> run) {
  const base::Nanos begin = base::Now();
  pool_->Run(count, [&](int, int first, int end) {
    for (int group = first; group < end; ++group) {
      for (int row = 0; row < rows; row += kMaxPanelRows) {
        run(group, row, std::min(kMaxPanelRows, rows - row));
      }
    }
  });
  if (inputs_.Blocks(rows) > 1) return;
  FetchTrial& trial = trials_[rows - 1];
  if (!trial.settled()) trial.Observe(base::Now() - begin);
}

void PackedLinear::MultiplyPacked(int rows, float* out) {
  const int together = PanelsTogether(rows);
  RunPanels(rows, (Panels() + together - 1) / together, [&](int group, int row, int of_call) {
    PanelArgs panels[kMaxPanelsTogether];
    int count = 0;
    for (int p = group * together; p < std::min((group + 1) * together, Panels()); ++p) {
      const int first = p * kPanelOutputs;
      panels[count++] =
          ArgsOf(Place(p), std::min(kPanelOutputs, shape_.outputs - first), row, of_call,
                 out + static_cast<size_t>(row) * shape_.outputs + first, shape_.outputs);
    }
    RunKernel(panels, count);
  });
}

absl::Status PackedLinear::Forward(const float* x, int rows, float* out) {
  if (rows == 0) return absl::OkStatus();
  const absl::Status status = inputs_.Pack(x, rows);
  if (status.ok()) MultiplyPacked(rows, out);
  return status;
}

bool PackedLinear::FusesGates(const Linear& gate_up) const {
  const auto* packed = dynamic_cast<const PackedLinear*>(&gate_up);
  return packed != nullptr && packed->Alternates() && packed->dtype_ == dtype_ &&
         packed->shape_.outputs == 2 * shape_.inputs && part_inputs_ % kPanelOutputs == 0;
}

void PackedLinear::RunGatedPanel(int panel, int row, int rows, PackedInputs* next) const {
  float gates[kMaxPanelRows][kPanelOutputs], ups[kMaxPanelRows][kPanelOutputs];
  const PanelArgs panels[] = {
      ArgsOf(2 * panel, kPanelOutputs, row, rows, gates[0], kPanelOutputs),
      ArgsOf(2 * panel + 1, kPanelOutputs, row, rows, ups[0], kPanelOutputs)};
  RunKernel(panels, 2);
  const bool pairs = dtype_ == DataType::kBFloat16;
  const auto gate = pairs ? kernels_.gate_bfloat16 : kernels_.gate_float32;
  const int64_t step = int64_t{panel} * kPanelOutputs / (pairs ? 2 : 1);
  for (int b = 0; b < inputs_.Blocks(rows); ++b) {
    const auto [first, count] = inputs_.RowsOfBlock(rows, b);
    gate(gates[first], ups[first], count, next->Step(row + first, count, step));
  }
}

absl::Status PackedLinear::ForwardGated(Linear* gate_up, const float* x, int rows, float* out) {
  if (rows == 0) return absl::OkStatus();
  auto* gated = static_cast<PackedLinear*>(gate_up);
  absl::Status status = gated->inputs_.Pack(x, rows);
  status.Update(inputs_.Reserve(rows));
  if (!status.ok()) return status;
  gated->RunPanels(rows, gated->Panels() / 2, [&](int panel, int row, int of_call) {
    gated->RunGatedPanel(panel, row, of_call, &inputs_);
  });
  MultiplyPacked(rows, out);
  return status;
}

}  // namespace specfabric::model::cpu
