#include "model/cuda/paged_attention.h"

#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"
#include "model/cuda/element.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::kWarp;
using base::cuda::Launch;
using base::cuda::Stream;
using base::cuda::WarpSum;

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kLaneElements = kMaxHeadDim / kWarp;

// One warp for each head of a row: query heads first, then key heads, then value heads. Grid:
// [heads / kWarps][rows].
template <typename Element>
__global__ void Place(PlaceArgs args) {
  const LayerCache& cache = args.cache;
  const int32_t all = cache.heads + 2 * cache.kv_heads;
  const int32_t head = static_cast<int32_t>(blockIdx.x * kWarps + threadIdx.x / kWarp);
  if (head >= all) return;
  const int32_t lane = static_cast<int32_t>(threadIdx.x % kWarp);
  const int32_t row = static_cast<int32_t>(blockIdx.y);
  const int32_t d = cache.head_dim, half = d / 2;
  const float* const from = args.qkv + (int64_t{row} * all + head) * d;
  const float* const bias = args.bias != nullptr ? args.bias + int64_t{head} * d : nullptr;
  const int64_t slot = args.views[row].write_slot;
  if (slot < 0 && head >= cache.heads) return;
  const auto value = [&](int32_t i) { return bias != nullptr ? from[i] + bias[i] : from[i]; };

  const int32_t first_value = cache.heads + cache.kv_heads;
  if (head >= first_value) {
    Element* const to =
        static_cast<Element*>(cache.values) + (slot * cache.kv_heads + head - first_value) * d;
    for (int32_t i = lane; i < d; i += kWarp) to[i] = Round<Element>(value(i));
    return;
  }
  const bool is_query = head < cache.heads;
  const float* const norm = is_query ? args.query_norm : args.key_norm;
  float shrink = 1;
  if (norm != nullptr) {
    float squares = 0;
    for (int32_t i = lane; i < d; i += kWarp) squares = fmaf(value(i), value(i), squares);
    shrink = 1.0f / sqrtf(WarpSum(squares) / static_cast<float>(d) + args.epsilon);
  }
  const auto normed = [&](int32_t i) {
    return norm != nullptr ? value(i) * shrink * norm[i] : value(i);
  };
  const float* const cosines = args.cosines + int64_t{row} * half;
  const float* const sines = args.sines + int64_t{row} * half;
  float* const query = args.queries + (int64_t{row} * cache.heads + head) * d;
  Element* const rounded =
      args.rounded_queries == nullptr
          ? nullptr
          : static_cast<Element*>(args.rounded_queries) + (int64_t{row} * cache.heads + head) * d;
  Element* const key =
      static_cast<Element*>(cache.keys) + (slot * cache.kv_heads + head - cache.heads) * d;
  for (int32_t i = lane; i < half; i += kWarp) {
    const float a = normed(i), b = normed(i + half);
    const float low = a * cosines[i] - b * sines[i], high = b * cosines[i] + a * sines[i];
    if (is_query && rounded != nullptr) {
      rounded[i] = Round<Element>(low);
      rounded[i + half] = Round<Element>(high);
    } else if (is_query) {
      query[i] = low * args.scale;
      query[i + half] = high * args.scale;
    } else {
      key[i] = Round<Element>(low);
      key[i + half] = Round<Element>(high);
    }
  }
}

// Online softmax over some of the slots, not yet divided by its sum (Milakov and Gimelshein,
// 1805.02867). A lane has the elements lane, lane + 32, ... of the head.
struct Partial {
  float highest = -INFINITY, sum = 0;
  float out[kLaneElements] = {};
};

// The four warps of a block take the row's visible slots in turn; their results are then merged in
// order. Grid: [heads][rows].
template <typename Element>
__global__ void Attend(AttendArgs args) {
  const LayerCache& cache = args.cache;
  const int32_t d = cache.head_dim;
  const int32_t head = static_cast<int32_t>(blockIdx.x), row = static_cast<int32_t>(blockIdx.y);
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / kWarp;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarp;
  const int32_t kv_head = head / (cache.heads / cache.kv_heads);
  const RowView view = args.views[row];
  const float* const query = args.queries + (int64_t{row} * cache.heads + head) * d;
  float q[kLaneElements] = {};
  for (int e = 0; e < kLaneElements && e * kWarp + lane < d; ++e) q[e] = query[e * kWarp + lane];

  Partial mine;
  for (int32_t i = warp; i < view.visible(); i += kWarps) {
    const int64_t slot = i < view.run_count ? args.slots[view.run_first + i]
                                            : args.extra[view.extra_first + i - view.run_count];
    const int64_t first = (slot * cache.kv_heads + kv_head) * d;
    const Element* const key = static_cast<const Element*>(cache.keys) + first;
    const Element* const value = static_cast<const Element*>(cache.values) + first;
    float score = 0;
    for (int e = 0; e < kLaneElements && e * kWarp + lane < d; ++e) {
      score = fmaf(q[e], Widen(key[e * kWarp + lane]), score);
    }
    score = WarpSum(score);
    const float highest = fmaxf(mine.highest, score);
    const float keep = expf(mine.highest - highest), weight = expf(score - highest);
    mine.highest = highest;
    mine.sum = fmaf(mine.sum, keep, weight);
    for (int e = 0; e < kLaneElements && e * kWarp + lane < d; ++e) {
      mine.out[e] = fmaf(weight, Widen(value[e * kWarp + lane]), mine.out[e] * keep);
    }
  }

  __shared__ float highest[kWarps], sum[kWarps], out[kWarps][kMaxHeadDim];
  if (lane == 0) {
    highest[warp] = mine.highest;
    sum[warp] = mine.sum;
  }
  for (int e = 0; e < kLaneElements && e * kWarp + lane < d; ++e) {
    out[warp][e * kWarp + lane] = mine.out[e];
  }
  __syncthreads();
  float top = highest[0];
  for (int w = 1; w < kWarps; ++w) top = fmaxf(top, highest[w]);
  float whole = 0, keep[kWarps];
  for (int w = 0; w < kWarps; ++w) {
    keep[w] = expf(highest[w] - top);  // 0 for a warp without slots
    whole = fmaf(sum[w], keep[w], whole);
  }
  Element* const to = static_cast<Element*>(args.out) + (int64_t{row} * cache.heads + head) * d;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < d; i += kThreads) {
    float joined = 0;
    for (int w = 0; w < kWarps; ++w) joined = fmaf(out[w][i], keep[w], joined);
    to[i] = Round<Element>(joined / whole);
  }
}

// A thread alone accesses its element of every slot, so the moves happen in order without a
// barrier. Grid: [parts of a slot][planes].
template <typename Element>
__global__ void Move(MoveArgs args) {
  const int32_t i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= args.width) return;
  Element* const plane = static_cast<Element*>(args.cache) + blockIdx.y * args.slots * args.width;
  for (int32_t m = 0; m < args.count; ++m) {
    const KvMove move = args.moves[m];
    plane[int64_t{move.to} * args.width + i] = plane[int64_t{move.from} * args.width + i];
  }
}

}  // namespace

absl::Status EnqueuePlace(const PlaceArgs& args, Stream stream) {
  const int32_t heads = args.cache.heads + 2 * args.cache.kv_heads;
  return ForElement(args.cache.type, [&](auto element) {
    return Launch("placing of queries and keys", Place<decltype(element)>,
                  dim3((heads + kWarps - 1) / kWarps, args.rows), dim3(kThreads), stream, args);
  });
}

absl::Status EnqueueAttend(const AttendArgs& args, Stream stream) {
  return ForElement(args.cache.type, [&](auto element) {
    return Launch("attention", Attend<decltype(element)>, dim3(args.cache.heads, args.rows),
                  dim3(kThreads), stream, args);
  });
}

absl::Status EnqueueMove(const MoveArgs& args, Stream stream) {
  return ForElement(args.type, [&](auto element) {
    return Launch("moves of KV slots", Move<decltype(element)>,
                  dim3((args.width + kThreads - 1) / kThreads, args.planes), dim3(kThreads), stream,
                  args);
  });
}

}  // namespace specfabric::model::cuda
