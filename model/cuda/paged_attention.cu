#include "model/cuda/paged_attention.h"

#include <algorithm>
#include <iterator>

#include "base/cuda/launch.h"
#include "base/cuda/tensor_core.h"
#include "model/cuda/element.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::AwaitInputs;
using base::cuda::kWarp;
using base::cuda::Launch;
using base::cuda::LetNextBegin;
using base::cuda::Stream;
using base::cuda::WarpSum;

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kLaneElements = kMaxHeadDim / kWarp;

// 1 over the root mean square of a head's values with their bias. For all lanes of a warp.
__device__ float NormScale(const float* from, const float* bias, int32_t d, float epsilon) {
  float squares = 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x) % kWarp; i < d; i += kWarp) {
    const float value = bias != nullptr ? from[i] + bias[i] : from[i];
    squares = fmaf(value, value, squares);
  }
  return 1.0f / sqrtf(WarpSum(squares) / static_cast<float>(d) + epsilon);
}

// A head of a row: query heads first, then key heads, then value heads.
struct PlacedHead {
  int32_t row = 0, head = 0;
  const float* from = nullptr;
  const float* bias = nullptr;  // null: none
  const float* norm = nullptr;  // null: none
  bool is_query = false, is_value = false;
};
__device__ PlacedHead HeadAt(const PlaceArgs& args, int32_t row, int32_t head) {
  const LayerCache& cache = args.cache;
  PlacedHead at = {.row = row, .head = head};
  at.from = args.qkv + (int64_t{row} * (cache.heads + 2 * cache.kv_heads) + head) * cache.head_dim;
  if (args.bias != nullptr) at.bias = args.bias + int64_t{head} * cache.head_dim;
  at.is_query = head < cache.heads;
  at.is_value = head >= cache.heads + cache.kv_heads;
  if (!at.is_value) at.norm = at.is_query ? args.query_norm : args.key_norm;
  return at;
}

// Where a key or value head is written.
template <typename Element>
__device__ Element* CachePlace(const LayerCache& cache, const PlacedHead& at, int64_t slot) {
  void* const plane = at.is_value ? cache.values : cache.keys;
  const int32_t head = at.head - cache.heads - (at.is_value ? cache.kv_heads : 0);
  return static_cast<Element*>(plane) + (slot * cache.kv_heads + head) * cache.head_dim;
}

// For heads of every size, a warp for each; the reference of PlaceRuns. Grid: [heads /
// kWarps][rows].
template <typename Element>
__global__ void __launch_bounds__(kThreads) Place(PlaceArgs args) {
  const LayerCache& cache = args.cache;
  const int32_t head = static_cast<int32_t>(blockIdx.x * kWarps + threadIdx.x / kWarp);
  if (head >= cache.heads + 2 * cache.kv_heads) return;
  const int32_t lane = static_cast<int32_t>(threadIdx.x % kWarp);
  const int32_t row = static_cast<int32_t>(blockIdx.y);
  const int32_t d = cache.head_dim, half = d / 2;
  const PlacedHead at = HeadAt(args, row, head);
  const int64_t slot = args.views[row].write_slot;
  if (slot < 0 && !at.is_query) return;
  const auto value = [&](int32_t i) {
    return at.bias != nullptr ? at.from[i] + at.bias[i] : at.from[i];
  };
  if (at.is_value) {
    Element* const to = CachePlace<Element>(cache, at, slot);
    for (int32_t i = lane; i < d; i += kWarp) to[i] = Round<Element>(value(i));
    return;
  }
  const float shrink = at.norm != nullptr ? NormScale(at.from, at.bias, d, args.epsilon) : 1.0f;
  const auto normed = [&](int32_t i) {
    return at.norm != nullptr ? value(i) * shrink * at.norm[i] : value(i);
  };
  const float* const cosines = args.cosines + int64_t{row} * half;
  const float* const sines = args.sines + int64_t{row} * half;
  const int64_t query = (int64_t{row} * cache.heads + head) * d;
  Element* const rounded = static_cast<Element*>(args.rounded_queries);
  for (int32_t i = lane; i < half; i += kWarp) {
    const float a = normed(i), b = normed(i + half);
    const float low = a * cosines[i] - b * sines[i], high = b * cosines[i] + a * sines[i];
    if (at.is_query && rounded != nullptr) {
      rounded[query + i] = Round<Element>(low);
      rounded[query + i + half] = Round<Element>(high);
    } else if (at.is_query) {
      args.queries[query + i] = low * args.scale;
      args.queries[query + i + half] = high * args.scale;
    } else {
      Element* const key = CachePlace<Element>(cache, at, slot);
      key[i] = Round<Element>(low);
      key[i + half] = Round<Element>(high);
    }
  }
}

// Consecutive floats that a thread takes of each half of a head. What is in memory is aligned to 16
// bytes.
constexpr int kRun = 8;
struct Run {
  float values[kRun];
};
__device__ Run LoadRun(const float* from) {
  Run run;
#pragma unroll
  for (int i = 0; i < kRun; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(from + i);
    run.values[i] = four.x;
    run.values[i + 1] = four.y;
    run.values[i + 2] = four.z;
    run.values[i + 3] = four.w;
  }
  return run;
}
__device__ void StoreRun(const Run& run, float* to) {
#pragma unroll
  for (int i = 0; i < kRun; i += 4) {
    *reinterpret_cast<float4*>(to + i) = {run.values[i], run.values[i + 1], run.values[i + 2],
                                          run.values[i + 3]};
  }
}
__device__ void StoreRun(const Run& run, BFloat16Bits* to) {
  uint32_t words[kRun / 2];
#pragma unroll
  for (int i = 0; i < kRun / 2; ++i) {
    words[i] = Round<BFloat16Bits>(run.values[2 * i]) |
               uint32_t{Round<BFloat16Bits>(run.values[2 * i + 1])} << 16;
  }
  *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
}

// The two halves of a head, as far as a thread has them.
struct Halves {
  Run low, high;
};
__device__ Halves LoadHalves(const float* from, int32_t half) {
  return {LoadRun(from), LoadRun(from + half)};
}
template <typename Element>
__device__ void StoreHalves(const Halves& halves, int32_t half, Element* to) {
  StoreRun(halves.low, to);
  StoreRun(halves.high, to + half);
}

__device__ void Rotate(const Run& cosines, const Run& sines, Halves* halves) {
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    const float a = halves->low.values[i], b = halves->high.values[i];
    halves->low.values[i] = a * cosines.values[i] - b * sines.values[i];
    halves->high.values[i] = b * cosines.values[i] + a * sines.values[i];
  }
}

// Applies `change(value, factor)` to all values and those of a head's weight or bias.
template <typename Function>
__device__ void ForValues(const Halves& factors, Halves* halves, const Function& change) {
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    change(halves->low.values[i], factors.low.values[i]);
    change(halves->high.values[i], factors.high.values[i]);
  }
}

// The scale of the norm of the calling thread's head, of which kParts threads have each a part. The
// warp's heads are added up one after the other, in the order of Place.
template <int kParts>
__device__ float ScaleOf(const PlaceArgs& args, int32_t warp_first, int32_t pairs, int32_t heads) {
  float scale = 1;
  for (int32_t h = 0; h < kWarp / kParts && warp_first + h < pairs; ++h) {
    const PlacedHead at = HeadAt(args, (warp_first + h) / heads, (warp_first + h) % heads);
    if (at.norm == nullptr) continue;
    const float found = NormScale(at.from, at.bias, args.cache.head_dim, args.epsilon);
    if (static_cast<int32_t>(threadIdx.x) % kWarp / kParts == h) scale = found;
  }
  return scale;
}

// Blocks on a processor at once, with 80 registers a thread. Left to itself the compiler spills.
constexpr int kPlaceBlocks = 6;

// For heads of 16 kParts values, which as many threads share: the bits of Place, in loads and
// stores of 16 bytes. Grid: all heads of all rows, kThreads / kParts a block.
template <typename Element, int kParts>
__global__ void __launch_bounds__(kThreads, kPlaceBlocks) PlaceRuns(PlaceArgs args) {
  const LayerCache& cache = args.cache;
  const int32_t heads = cache.heads + 2 * cache.kv_heads, pairs = args.rows * heads;
  const int32_t thread = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  // Threads behind the last head do as those of the last, but write nothing.
  const int32_t pair = min(thread / kParts, pairs - 1);
  constexpr int32_t kHalf = kParts * kRun;
  const int32_t first = thread % kParts * kRun;
  const PlacedHead at = HeadAt(args, pair / heads, pair % heads);
  const int64_t slot = args.views[at.row].write_slot;
  const Run cosines = LoadRun(args.cosines + int64_t{at.row} * kHalf + first);
  const Run sines = LoadRun(args.sines + int64_t{at.row} * kHalf + first);
  AwaitInputs();
  LetNextBegin();
  Halves values = LoadHalves(at.from + first, kHalf);
  if (at.bias != nullptr) {
    ForValues(LoadHalves(at.bias + first, kHalf), &values,
              [](float& value, float bias) { value += bias; });
  }
  if (args.query_norm != nullptr || args.key_norm != nullptr) {
    const int32_t warp_first = thread / kWarp * kWarp / kParts;
    const float scale = ScaleOf<kParts>(args, warp_first, pairs, heads);
    if (at.norm != nullptr) {
      ForValues(LoadHalves(at.norm + first, kHalf), &values,
                [&](float& value, float weight) { value = value * scale * weight; });
    }
  }
  if (thread / kParts >= pairs) return;
  if (!at.is_value) Rotate(cosines, sines, &values);
  const int64_t query = (int64_t{at.row} * cache.heads + at.head) * 2 * kHalf + first;
  if (!at.is_query) {
    if (slot < 0) return;
    StoreHalves(values, kHalf, CachePlace<Element>(cache, at, slot) + first);
  } else if (args.rounded_queries != nullptr) {
    StoreHalves(values, kHalf, static_cast<Element*>(args.rounded_queries) + query);
  } else {
    ForValues({}, &values, [&](float& value, float) { value *= args.scale; });
    StoreHalves(values, kHalf, args.queries + query);
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
__global__ void __launch_bounds__(kThreads) Attend(AttendArgs args) {
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
__global__ void __launch_bounds__(kThreads) Move(MoveArgs args) {
  const int32_t i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= args.width) return;
  Element* const plane = static_cast<Element*>(args.cache) + blockIdx.y * args.slots * args.width;
  for (int32_t m = 0; m < args.count; ++m) {
    const KvMove move = args.moves[m];
    plane[int64_t{move.to} * args.width + i] = plane[int64_t{move.from} * args.width + i];
  }
}

bool IsAligned(const void* memory) { return reinterpret_cast<uintptr_t>(memory) % 16 == 0; }

// Runs of half a head; 0 if the memory is not aligned as runs are read.
int32_t RunsOf(const PlaceArgs& args) {
  const void* const places[] = {args.cache.keys, args.cache.values,   args.qkv,     args.bias,
                                args.query_norm, args.key_norm,       args.cosines, args.sines,
                                args.queries,    args.rounded_queries};
  const bool aligned = std::all_of(std::begin(places), std::end(places), IsAligned);
  return aligned && args.cache.head_dim % (2 * kRun) == 0 ? args.cache.head_dim / (2 * kRun) : 0;
}

template <int kParts>
absl::Status EnqueuePlaceRuns(const PlaceArgs& args, Stream stream) {
  const int64_t threads =
      int64_t{args.rows} * (args.cache.heads + 2 * args.cache.kv_heads) * kParts;
  return ForElement(args.cache.type, [&](auto element) {
    return Launch("placing of queries and keys", PlaceRuns<decltype(element), kParts>,
                  dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)), dim3(kThreads),
                  {.overlaps = true}, stream, args);
  });
}

}  // namespace

absl::Status EnqueuePlaceReference(const PlaceArgs& args, Stream stream) {
  const int32_t heads = args.cache.heads + 2 * args.cache.kv_heads;
  return ForElement(args.cache.type, [&](auto element) {
    return Launch("placing of queries and keys", Place<decltype(element)>,
                  dim3((heads + kWarps - 1) / kWarps, args.rows), dim3(kThreads), stream, args);
  });
}

absl::Status EnqueuePlace(const PlaceArgs& args, Stream stream) {
  switch (RunsOf(args)) {
    case 4:
      return EnqueuePlaceRuns<4>(args, stream);
    case 8:
      return EnqueuePlaceRuns<8>(args, stream);
    case 16:
      return EnqueuePlaceRuns<16>(args, stream);
    default:
      return EnqueuePlaceReference(args, stream);
  }
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
