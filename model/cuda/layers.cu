#include "model/cuda/layers.h"

#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"
#include "model/cuda/element.h"
#include "model/parallel/rank_tree.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::BlockSum;
using base::cuda::Launch;
using base::cuda::Stream;

constexpr int kThreads = 256;

unsigned Blocks(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

// Grid: [rows].
template <typename Element>
__global__ void Embed(EmbedArgs args) {
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const int32_t token = args.tokens[row] - args.first;
  const bool mine = token >= 0 && token < args.count;
  const Element* const from =
      static_cast<const Element*>(args.table) + int64_t{token} * args.hidden;
  float* const to = args.residual + int64_t{row} * args.hidden;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < args.hidden; i += kThreads) {
    to[i] = mine ? Widen(from[i]) : 0.0f;
  }
}

// Grid: [rows]. A thread accesses only its own elements, so it may read what it wrote without a
// barrier.
template <typename Element>
__global__ void AddAndNorm(NormArgs args) {
  const int64_t first = int64_t{blockIdx.x} * args.hidden;
  float* const residual = args.residual + first;
  const int32_t begin = static_cast<int32_t>(threadIdx.x);
  float squares = 0;
  for (int32_t i = begin; i < args.hidden; i += kThreads) {
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
  for (int32_t i = begin; i < args.hidden; i += kThreads) {
    normed[i] = Round<Element>(residual[i] * scale * args.weight[i]);
  }
}

// Grid: [parts of a row][rows].
template <typename Element>
__global__ void Gate(GateArgs args) {
  const int32_t i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= args.features) return;
  const int64_t row = blockIdx.y;
  const float* const gates = args.gate_up + row * 2 * args.features;
  float gate = gates[i], up = gates[args.features + i];
  if (args.bias != nullptr) {
    gate += args.bias[i];
    up += args.bias[args.features + i];
  }
  static_cast<Element*>(args.out)[row * args.features + i] =
      Round<Element>(gate / (1.0f + expf(-gate)) * up);
}

// Grid: [parts of a row][rows].
template <typename Element>
__global__ void KeepRows(KeepArgs args) {
  const int32_t i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= args.width) return;
  const int64_t row = blockIdx.y;
  static_cast<Element*>(args.to)[row * args.width + i] =
      static_cast<const Element*>(args.from)[int64_t{args.index[row]} * args.width + i];
}

__global__ void SumParts(const float* parts, int32_t ranks, int64_t count, float* out) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  float sums[kMaxSumParts];
  for (int32_t r = 0; r < ranks; ++r) sums[r] = parts[r * count + i];
  ForRankPairs(ranks, [&](int left, int right) { sums[left] += sums[right]; });
  out[i] = sums[0];
}

}  // namespace

absl::Status EnqueueEmbed(const EmbedArgs& args, Stream stream) {
  return ForElement(args.type, [&](auto element) {
    return Launch("embedding", Embed<decltype(element)>, dim3(args.rows), dim3(kThreads), stream,
                  args);
  });
}

absl::Status EnqueueAddAndNorm(const NormArgs& args, Stream stream) {
  return ForElement(args.type, [&](auto element) {
    return Launch("norm", AddAndNorm<decltype(element)>, dim3(args.rows), dim3(kThreads), stream,
                  args);
  });
}

absl::Status EnqueueGate(const GateArgs& args, Stream stream) {
  return ForElement(args.type, [&](auto element) {
    return Launch("gate", Gate<decltype(element)>, dim3(Blocks(args.features), args.rows),
                  dim3(kThreads), stream, args);
  });
}

absl::Status EnqueueSumParts(const float* parts, int32_t ranks, int64_t count, float* out,
                             Stream stream) {
  if (ranks < 1 || ranks > kMaxSumParts) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sum over ", ranks, " ranks; allowed: 1 to ", kMaxSumParts));
  }
  return Launch("sum over ranks", SumParts, dim3(Blocks(count)), dim3(kThreads), stream, parts,
                ranks, count, out);
}

absl::Status EnqueueKeepRows(const KeepArgs& args, Stream stream) {
  return ForElement(args.type, [&](auto element) {
    return Launch("row selection", KeepRows<decltype(element)>, dim3(Blocks(args.width), args.rows),
                  dim3(kThreads), stream, args);
  });
}

}  // namespace specfabric::model::cuda
