#include "model/cuda/state_rows.h"

#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"
#include "base/cuda/tensor_core.h"
#include "base/finite.h"
#include "model/cuda/element.h"
#include "model/cuda/norm_row.cuh"

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
constexpr int kFour = 4;

// Grid: [rows].
template <bool kFours>
__global__ void __launch_bounds__(kThreads) KeepState(KeepStateArgs args) {
  LetNextBegin();
  AwaitInputs();
  const int64_t row = blockIdx.x;
  const float* const from = args.residual + row * args.hidden;
  uint16_t* const to = args.kept + (row * args.columns + args.column) * args.hidden;
  if constexpr (kFours) {
    for (int32_t i = kFour * Thread(); i < args.hidden; i += kFour * kThreads) {
      WriteFour(to + i, ReadFour(from + i));
    }
  } else {
    for (int32_t i = Thread(); i < args.hidden; i += kThreads) to[i] = Round<uint16_t>(from[i]);
  }
}

// Grid: [columns][rows].
template <bool kFours>
__global__ void __launch_bounds__(kThreads) GatherStates(GatherStatesArgs args) {
  LetNextBegin();
  AwaitInputs();
  const int64_t row = args.rows[blockIdx.y], column = args.columns[blockIdx.x];
  const uint16_t* const from = args.kept + (row * args.kept_columns + column) * args.hidden;
  uint16_t* const to =
      args.to + (int64_t{blockIdx.y} * args.column_count + blockIdx.x) * args.hidden;
  if constexpr (kFours) {
    for (int32_t i = kFour * Thread(); i < args.hidden; i += kFour * kThreads) {
      *reinterpret_cast<uint2*>(to + i) = *reinterpret_cast<const uint2*>(from + i);
    }
  } else {
    for (int32_t i = Thread(); i < args.hidden; i += kThreads) to[i] = from[i];
  }
}

// What a row is multiplied by in a norm, of the sum of squares that each thread has of its own
// elements. Called by all threads of a block together.
__device__ float NormScale(float squares, int32_t width, float epsilon) {
  return 1.0f / sqrtf(BlockSum<kThreads>(squares) / static_cast<float>(width) + epsilon);
}

// Grid: [runs][rows].
template <typename From, typename Element>
__global__ void __launch_bounds__(kThreads) FuseInputs(FuseInputsArgs args) {
  LetNextBegin();
  AwaitInputs();
  const int64_t first = (int64_t{blockIdx.y} * args.runs + blockIdx.x) * args.run;
  const From* const from = static_cast<const From*>(args.from) + first;
  Element* const out = static_cast<Element*>(args.out) + first;
  float squares = 0;
  bool finite = true;
  for (int32_t i = Thread(); i < args.run; i += kThreads) {
    const float value = Widen(from[i]);
    squares = fmaf(value, value, squares);
    finite = finite && base::IsFinite(value);
  }
  if (!finite && args.not_finite != nullptr) *args.not_finite = 1;
  const float* const weight =
      args.weight == nullptr ? nullptr : args.weight + int64_t{blockIdx.x} * args.run;
  const float scale = weight == nullptr ? 1.0f : NormScale(squares, args.run, args.epsilon);
  for (int32_t i = Thread(); i < args.run; i += kThreads) {
    const float value = Widen(from[i]);
    out[i] = Round<Element>(weight == nullptr ? value : value * scale * weight[i]);
  }
}

// A thread accesses only its own elements, so that the residual may be the embeddings. Grid:
// [rows].
template <typename Element>
__global__ void __launch_bounds__(kThreads) JoinStates(JoinStatesArgs args) {
  LetNextBegin();
  AwaitInputs();
  const int32_t hidden = args.hidden;
  const int64_t first = int64_t{blockIdx.x} * hidden;
  const float* const embedding = args.embeddings + first;
  const float* const state = args.states + first;
  Element* const joined = static_cast<Element*>(args.joined) + 2 * first;
  Element* const joined_embedding = args.state_first ? joined + hidden : joined;
  Element* const joined_state = args.state_first ? joined : joined + hidden;
  float* const residual = args.residual == nullptr ? nullptr : args.residual + first;
  float of_embedding = 0, of_state = 0;
  for (int32_t i = Thread(); i < hidden; i += kThreads) {
    of_embedding = fmaf(embedding[i], embedding[i], of_embedding);
    of_state = fmaf(state[i], state[i], of_state);
  }
  const float embedding_scale = NormScale(of_embedding, hidden, args.epsilon);
  const float state_scale = NormScale(of_state, hidden, args.epsilon);
  for (int32_t i = Thread(); i < hidden; i += kThreads) {
    const float normed = state[i] * state_scale * args.state_weight[i];
    joined_embedding[i] = Round<Element>(embedding[i] * embedding_scale * args.embedding_weight[i]);
    joined_state[i] = Round<Element>(normed);
    if (residual != nullptr) residual[i] = args.begins_normed ? normed : state[i];
  }
}

// Grid: [parts of a row][rows].
__global__ void __launch_bounds__(kThreads) SpreadLogits(SpreadLogitsArgs args) {
  LetNextBegin();
  AwaitInputs();
  const int32_t id = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (id >= args.vocabulary) return;
  const int64_t row = blockIdx.y;
  const int32_t place = args.places[id];
  float logit = kNeverScored;
  if (place >= 0) logit = args.logits[row * args.scored + place];
  args.out[row * args.vocabulary + id] = logit;
}

bool InFours(int32_t hidden, const void* to) {
  return hidden % kFour == 0 && reinterpret_cast<uintptr_t>(to) % sizeof(uint2) == 0;
}

}  // namespace

absl::Status EnqueueKeepState(const KeepStateArgs& args, Stream stream) {
  return Launch("keeping of states",
                InFours(args.hidden, args.kept) ? KeepState<true> : KeepState<false>,
                dim3(args.rows), dim3(kThreads), kOverlaps, stream, args);
}

absl::Status EnqueueGatherStates(const GatherStatesArgs& args, Stream stream) {
  return Launch("gathering of states",
                InFours(args.hidden, args.to) ? GatherStates<true> : GatherStates<false>,
                dim3(args.column_count, args.row_count), dim3(kThreads), kOverlaps, stream, args);
}

absl::Status EnqueueFuseInputs(const FuseInputsArgs& args, Stream stream) {
  return ForElement(args.from_type, [&](auto from) {
    return ForElement(args.type, [&](auto element) {
      return Launch("inputs of fc", FuseInputs<decltype(from), decltype(element)>,
                    dim3(args.runs, args.rows), dim3(kThreads), kOverlaps, stream, args);
    });
  });
}

absl::Status EnqueueJoinStates(const JoinStatesArgs& args, Stream stream) {
  return ForElement(args.type, [&](auto element) {
    return Launch("joining of states", JoinStates<decltype(element)>, dim3(args.rows),
                  dim3(kThreads), kOverlaps, stream, args);
  });
}

absl::Status EnqueueSpreadLogits(const SpreadLogitsArgs& args, Stream stream) {
  const auto parts = static_cast<unsigned>((args.vocabulary + kThreads - 1) / kThreads);
  return Launch("spreading of logits", SpreadLogits, dim3(parts, args.rows), dim3(kThreads),
                kOverlaps, stream, args);
}

}  // namespace specfabric::model::cuda
