// What a target has to know of draft rows that it has received.

#include "base/bfloat16.h"
#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"
#include "base/cuda/tensor_core.h"
#include "verification/cuda/draft_rows.h"
#include "verification/cuda/row_total.h"

namespace specfabric::verification::cuda {
namespace {

using base::cuda::AwaitInputs;
using base::cuda::kAllLanes;
using base::cuda::Launch;
using base::cuda::Stream;
using base::cuda::StridedSum;
using base::cuda::Thread;
using base::cuda::Threads;
using sampling::DraftRowFacts;
using sampling::kProbSums;

// sampling::TotalProb of a row with ids, ascending and of the vocabulary. Called by all threads of
// the block together.
__device__ double TotalByIds(const base::TokenId* ids, const uint16_t* probs, int32_t entries) {
  return StridedSum<kProbSums>(0, kProbSums, [&](int lane) {
    double sum = 0;
    for (int32_t i = 0; i < entries; ++i) {
      if (ids[i] % kProbSums == lane) sum += base::WidenBFloat16(probs[i]);
    }
    return sum;
  });
}

// Grid: [rows].
__global__ __launch_bounds__(kTotalThreads) void ValidateRows(const uint8_t* bytes,
                                                              DraftRowLayout layout,
                                                              DraftRowFacts* facts) {
  AwaitInputs();
  __shared__ unsigned long long highest,
      last_after;  // last_after: entries from the first misplaced one on
  if (Thread() == 0) highest = last_after = 0;
  __syncthreads();
  const uint8_t* const row = bytes + blockIdx.x * layout.row_bytes();
  const auto* const ids = reinterpret_cast<const base::TokenId*>(row);
  const auto* const probs = reinterpret_cast<const uint16_t*>(row + layout.id_bytes());
  double total = 0;
  uint16_t high = 0;
  const auto see = [&high](uint16_t prob) {
    if (prob > high) high = prob;
  };
  if (layout.whole()) {
    total = RowTotal(probs, layout.entries, see);
  } else {
    for (int32_t i = Thread(); i < layout.entries; i += Threads()) {
      see(probs[i]);
      const base::TokenId previous = i == 0 ? -1 : ids[i - 1];
      if (ids[i] > previous && ids[i] < layout.vocabulary) continue;
      atomicMax(&last_after, static_cast<unsigned long long>(layout.entries - i));
    }
  }
  atomicMax(&highest, static_cast<unsigned long long>(
                          __reduce_max_sync(kAllLanes, static_cast<unsigned>(high))));
  __syncthreads();
  const auto misplaced = layout.entries - static_cast<int32_t>(last_after);
  DraftRowFacts found = {.highest = static_cast<uint16_t>(highest)};
  if (misplaced < layout.entries) {
    found.misplaced = misplaced;
    found.id = ids[misplaced];
    found.previous = misplaced == 0 ? -1 : ids[misplaced - 1];
  } else {
    found.total = layout.whole() ? total : TotalByIds(ids, probs, layout.entries);
  }
  if (Thread() == 0) facts[blockIdx.x] = found;
}

}  // namespace

absl::Status EnqueueValidate(const uint8_t* bytes, int32_t rows, const DraftRowLayout& layout,
                             DraftRowFacts* facts, Stream stream) {
  return Launch("draft rows' facts", ValidateRows, dim3(rows), dim3(kTotalThreads),
                {.overlaps = true}, stream, bytes, layout, facts);
}

}  // namespace specfabric::verification::cuda
