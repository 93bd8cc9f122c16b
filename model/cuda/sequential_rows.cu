#include "model/cuda/sequential_rows.h"

#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"
#include "base/cuda/tensor_core.h"
#include "model/cuda/element.h"
#include "model/cuda/state_rows.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::AwaitInputs;
using base::cuda::BlockSum;
using base::cuda::Launch;
using base::cuda::LetNextBegin;
using base::cuda::Stream;
using base::cuda::Thread;

constexpr int kThreads = 256;
constexpr base::cuda::LaunchOptions kOverlaps = {.overlaps = true};

__device__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Grid: [nodes].
template <typename Element>
__global__ void __launch_bounds__(kThreads) NodeInputs(NodeInputsArgs args) {
  LetNextBegin();
  AwaitInputs();
  const int64_t node = blockIdx.x, rank = args.rank, hidden = args.hidden;
  const Element* const embedding =
      static_cast<const Element*>(args.table) + args.before[node] * rank;
  Element* const joined = static_cast<Element*>(args.joined) + node * args.width;
  for (int32_t i = Thread(); i < rank; i += kThreads) {
    args.embeddings[node * rank + i] = Widen(embedding[i]);
    joined[args.embedding_at + i] = embedding[i];
    if (args.states != nullptr) joined[i] = Round<Element>(args.states[node * rank + i]);
  }
  if (args.output_at < 0) return;
  const Element* const output =
      static_cast<const Element*>(args.outputs) + args.rows[node] * hidden;
  for (int32_t i = Thread(); i < hidden; i += kThreads) joined[args.output_at + i] = output[i];
}

// Grid: [nodes].
template <typename Element>
__global__ void __launch_bounds__(kThreads) NodeFeatures(NodeFeaturesArgs args) {
  LetNextBegin();
  AwaitInputs();
  const int64_t node = blockIdx.x, rank = args.rank;
  const bool recurs = args.markov == MarkovKind::kRecurrent;
  const float* const z = args.products + node * (recurs ? 3 : 1) * rank;
  for (int32_t i = Thread(); i < rank; i += kThreads) {
    const int64_t at = node * rank + i;
    const float gate = Sigmoid(z[i] + args.bias[i]);
    float feature;
    if (recurs) {
      const float candidate = tanhf(z[rank + i] + args.bias[rank + i]);
      args.next_states[at] = gate * args.states[at] + (1 - gate) * candidate;
      feature = tanhf(z[2 * rank + i] + args.bias[2 * rank + i]);
    } else {
      feature = gate * args.embeddings[at];
    }
    static_cast<Element*>(args.features)[at] = Round<Element>(feature);
  }
}

// Grid: [parts of a row][nodes].
__global__ void __launch_bounds__(kThreads) CorrectLogits(CorrectLogitsArgs args) {
  LetNextBegin();
  AwaitInputs();
  const int32_t id = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (id >= args.vocabulary) return;
  const int64_t node = blockIdx.y;
  const int32_t place = args.places == nullptr ? id : args.places[id];
  float logit = kNeverScored;
  if (place >= 0) {
    logit = args.logits[int64_t{args.rows[node]} * args.scored + place];
    if (args.corrections != nullptr) logit += args.corrections[node * args.scored + place];
  }
  args.out[node * args.vocabulary + id] = logit;
}

// Grid: [nodes].
template <typename Element>
__global__ void __launch_bounds__(kThreads) Confidences(ConfidencesArgs args) {
  LetNextBegin();
  AwaitInputs();
  const int64_t node = blockIdx.x;
  const Element* const output =
      static_cast<const Element*>(args.outputs) + int64_t{args.rows[node]} * args.hidden;
  float sum = 0;
  for (int32_t i = Thread(); i < args.hidden; i += kThreads) {
    sum = fmaf(args.weights[i], Widen(output[i]), sum);
  }
  for (int32_t i = Thread(); i < args.rank; i += kThreads) {
    sum = fmaf(args.weights[args.hidden + i], args.embeddings[node * args.rank + i], sum);
  }
  sum = BlockSum<kThreads>(sum);
  if (Thread() == 0) args.out[node] = Sigmoid(sum + args.weights[args.hidden + args.rank]);
}

}  // namespace

absl::Status EnqueueNodeInputs(const NodeInputsArgs& args, Stream stream) {
  return ForElement(args.type, [&](auto element) {
    return Launch("inputs of a sequential head", NodeInputs<decltype(element)>, dim3(args.nodes),
                  dim3(kThreads), kOverlaps, stream, args);
  });
}

absl::Status EnqueueNodeFeatures(const NodeFeaturesArgs& args, Stream stream) {
  return ForElement(args.type, [&](auto element) {
    return Launch("features of a sequential head", NodeFeatures<decltype(element)>,
                  dim3(args.nodes), dim3(kThreads), kOverlaps, stream, args);
  });
}

absl::Status EnqueueCorrectLogits(const CorrectLogitsArgs& args, Stream stream) {
  const auto parts = static_cast<unsigned>((args.vocabulary + kThreads - 1) / kThreads);
  return Launch("correction of logits", CorrectLogits, dim3(parts, args.nodes), dim3(kThreads),
                kOverlaps, stream, args);
}

absl::Status EnqueueConfidences(const ConfidencesArgs& args, Stream stream) {
  return ForElement(args.type, [&](auto element) {
    return Launch("confidences", Confidences<decltype(element)>, dim3(args.nodes), dim3(kThreads),
                  kOverlaps, stream, args);
  });
}

}  // namespace specfabric::model::cuda
