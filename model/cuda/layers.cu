#include "model/cuda/layers.h"

#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"
#include "base/cuda/tensor_core.h"
#include "model/cuda/element.h"
#include "model/cuda/gated.h"
#include "model/cuda/norm_row.cuh"
#include "model/cuda/product.h"
#include "model/cuda/rank_sum.cuh"

namespace specfabric::model::cuda {
namespace {

using base::cuda::AwaitInputs;
using base::cuda::BlockSum;
using base::cuda::Launch;
using base::cuda::LetNextBegin;
using base::cuda::Stream;
using base::cuda::Thread;

constexpr int kThreads = kNormThreads;
constexpr base::cuda::LaunchOptions kOverlaps = {.overlaps = true};

unsigned Blocks(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

// Grid: [rows].
template <typename Element>
__global__ void __launch_bounds__(kThreads) Embed(EmbedArgs args) {
  LetNextBegin();
  AwaitInputs();
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const int32_t token = args.tokens[row] - args.first;
  const bool mine = token >= 0 && token < args.count;
  const Element* const table = static_cast<const Element*>(args.table);
  float* const to = args.residual + int64_t{row} * args.hidden;
  for (int32_t i = Thread(); i < args.hidden; i += kThreads) {
    const int64_t at =
        args.packed ? PackedIndex(args.hidden, token, i) : int64_t{token} * args.hidden + i;
    to[i] = mine ? Widen(table[at]) : 0.0f;
  }
}

// Grid: [rows].
template <typename Element, int kFours>
__global__ void __launch_bounds__(kThreads) AddAndNorm(NormArgs args) {
  LetNextBegin();
  const RowNorm<Element, kFours> norm(args);
  AwaitInputs();
  norm.AddAndNorm(static_cast<int32_t>(blockIdx.x),
                  [&](int64_t at) { return ReadFour(args.added + at); });
}

// The same for rows that RowNorm does not take. A thread accesses only its own elements, so it may
// read what it wrote without a barrier.
template <typename Element>
__global__ void __launch_bounds__(kThreads) AddAndNormAny(NormArgs args) {
  LetNextBegin();
  AwaitInputs();
  const int64_t first = int64_t{blockIdx.x} * args.hidden;
  float* const residual = args.residual + first;
  float squares = 0;
  for (int32_t i = Thread(); i < args.hidden; i += kThreads) {
    float value = residual[i];
    if (args.added != nullptr) {
      const float bias = args.bias != nullptr ? args.bias[i] : 0.0f;
      value += args.added[first + i] + bias;
      residual[i] = value;
    }
    squares = fmaf(value, value, squares);
  }
  const float mean = BlockSum<kThreads>(squares) / static_cast<float>(args.hidden);
  const float scale = 1.0f / sqrtf(mean + args.epsilon);
  Element* const normed = static_cast<Element*>(args.normed) + first;
  for (int32_t i = Thread(); i < args.hidden; i += kThreads) {
    normed[i] = Round<Element>(residual[i] * scale * args.weight[i]);
  }
}

// Grid: [parts of a row][rows].
template <typename Element>
__global__ void __launch_bounds__(kThreads) Gate(GateArgs args) {
  LetNextBegin();
  AwaitInputs();
  const int32_t i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= args.features) return;
  const int64_t row = blockIdx.y;
  const float* const gate_up = args.gate_up + row * GatedOutputs(args.features);
  float gate = gate_up[GatedRow(i)], up = gate_up[GatedRow(i) + kGatedRows];
  if (args.bias != nullptr) {
    gate += args.bias[i];
    up += args.bias[args.features + i];
  }
  static_cast<Element*>(args.out)[row * args.features + i] = Round<Element>(Gated(gate, up));
}

// Grid: [parts of a row][rows].
template <typename Element>
__global__ void __launch_bounds__(kThreads) KeepRows(KeepArgs args) {
  LetNextBegin();
  AwaitInputs();
  const int32_t i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= args.width) return;
  const int64_t row = blockIdx.y;
  static_cast<Element*>(args.to)[row * args.width + i] =
      static_cast<const Element*>(args.from)[int64_t{args.index[row]} * args.width + i];
}

template <int kMost>
__global__ void __launch_bounds__(kThreads)
    SumParts(const float* parts, int32_t ranks, int64_t count, float* out) {
  LetNextBegin();
  AwaitInputs();
  const int64_t i = int64_t{blockIdx.x} * kThreads + Thread();
  if (i >= count) return;
  out[i] = RankSum<kMost>(ranks, [&](int r) { return parts[r * count + i]; });
}

}  // namespace

absl::Status EnqueueEmbed(const EmbedArgs& args, Stream stream) {
  return ForElement(args.type, [&](auto element) {
    return Launch("embedding", Embed<decltype(element)>, dim3(args.rows), dim3(kThreads), kOverlaps,
                  stream, args);
  });
}

absl::Status EnqueueAddAndNorm(const NormArgs& args, Stream stream) {
  return ForElement(args.type, [&](auto element) {
    using Element = decltype(element);
    const auto launch = [&](void (*kernel)(NormArgs)) {
      return Launch("norm", kernel, dim3(args.rows), dim3(kThreads), kOverlaps, stream, args);
    };
    switch (FoursOf(args.hidden)) {
      case 2:
        return launch(AddAndNorm<Element, 2>);
      case 4:
        return launch(AddAndNorm<Element, 4>);
      case 8:
        return launch(AddAndNorm<Element, 8>);
      default:
        return launch(AddAndNormAny<Element>);
    }
  });
}

absl::Status EnqueueGate(const GateArgs& args, Stream stream) {
  return ForElement(args.type, [&](auto element) {
    return Launch("gate", Gate<decltype(element)>, dim3(Blocks(args.features), args.rows),
                  dim3(kThreads), kOverlaps, stream, args);
  });
}

absl::Status EnqueueSumParts(const float* parts, int32_t ranks, int64_t count, float* out,
                             Stream stream) {
  if (ranks < 1 || ranks > kMaxSumParts) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sum over ", ranks, " ranks; allowed: 1 to ", kMaxSumParts));
  }
  constexpr int kFew = 8;
  return Launch("sum over ranks", ranks <= kFew ? SumParts<kFew> : SumParts<kMaxSumParts>,
                dim3(Blocks(count)), dim3(kThreads), kOverlaps, stream, parts, ranks, count, out);
}

absl::Status EnqueueKeepRows(const KeepArgs& args, Stream stream) {
  return ForElement(args.type, [&](auto element) {
    return Launch("row selection", KeepRows<decltype(element)>, dim3(Blocks(args.width), args.rows),
                  dim3(kThreads), kOverlaps, stream, args);
  });
}

}  // namespace specfabric::model::cuda
