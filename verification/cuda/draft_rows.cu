#include "verification/cuda/draft_rows.h"

#include <algorithm>

#include "base/bfloat16.h"
#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"
#include "base/exp.h"
#include "verification/cuda/round_rows.h"

namespace specfabric::verification::cuda {
namespace {

using base::cuda::kAllLanes;
using base::cuda::kWarp;
using base::cuda::Launch;
using base::cuda::Stream;
using base::cuda::StridedSum;
using base::cuda::Thread;
using base::cuda::Threads;

using sampling::DraftRowFacts;
using sampling::kLargestProb;
using sampling::kProbRun;
using sampling::kProbSums;
using speculation::SiblingDraw;

static_assert(kProbRun == verification::kRowChunk);  // so that a chunk is a run
constexpr int kDrawThreads = 512, kValidateThreads = 256;
constexpr int kMostWarps = 32;  // a block

// The workspace in which the rows of a batch are computed.
struct RowsInWork {
  int32_t runs = 0;           // a row
  double* sums = nullptr;     // [nodes][runs], of each run's probs
  uint16_t* probs = nullptr;  // [nodes][runs][kProbRun], 0 past the vocabulary
  RowFilters filters = {};

  static RowsInWork In(const RoundBatch& rows, void* workspace) {
    RowsInWork work = {.runs = ChunksOf(rows.vocabulary)};
    const size_t runs = static_cast<size_t>(rows.nodes) * work.runs;
    work.sums = static_cast<double*>(workspace);
    work.filters = RowFilters::In(rows, work.sums + runs);
    work.probs = reinterpret_cast<uint16_t*>(work.filters.of_node + rows.nodes);
    return work;
  }
};

// sampling::MakeDraftProbs of one row, before it is cut to its most likely tokens.
class DraftProbOf {
 public:
  __device__ DraftProbOf(const RowFilter& filter, const base::SamplingParams& sampling)
      : filter_(filter), scale_(base::ScaleFor(sampling.temperature)) {
    if (sampling.greedy()) chosen_ = TokenOf(filter.best);
  }

  __device__ uint16_t operator()(float logit, base::TokenId id) const {
    if (!filter_.finite()) return 0;
    if (chosen_ != base::kNoToken) return id == chosen_ ? kLargestProb : 0;
    if (Competitor(logit, id) < filter_.least) return 0;
    return sampling::RoundProb(base::ScaledExp(logit, ScoreOf(filter_.best), scale_));
  }

 private:
  const RowFilter filter_;
  const base::ExpScale scale_;
  base::TokenId chosen_ = base::kNoToken;
};

// sampling::TotalProb of a run. Called by all lanes of a warp together.
__device__ double RunTotal(const uint16_t* run) {
  constexpr int kOfLane = kProbSums / kWarp;
  double sums[kOfLane] = {};
  for (int i = 0; i < kProbRun; i += kProbSums) {
    for (int j = 0; j < kOfLane; ++j) {
      sums[j] += base::WidenBFloat16(run[i + j * kWarp + Lane()]);
    }
  }
  double total = 0;
  for (int j = 0; j < kOfLane; ++j) {
    for (int lane = 0; lane < kWarp; ++lane) total += __shfl_sync(kAllLanes, sums[j], lane);
  }
  return total;
}

// Grid: GridOfChunks.
__global__ __launch_bounds__(kChunkThreads) void ExpRuns(RoundBatch rows, RowsInWork work) {
  const int run = ChunkOfWarp();
  if (run >= work.runs) return;
  const int32_t node = static_cast<int32_t>(blockIdx.y);
  const RoundRow row = RowOf(rows, node);
  const DraftProbOf prob_of(work.filters.of_node[node], row.round->sampling);
  const int64_t place = int64_t{node} * work.runs + run;
  uint16_t* const probs = work.probs + place * kProbRun;
  for (int i = Lane(); i < kProbRun; i += kWarp) {
    const base::TokenId id = run * kProbRun + i;
    probs[i] = id < rows.vocabulary ? prob_of(row.logits[id], id) : 0;
  }
  __syncwarp();
  const double sum = RunTotal(probs);
  if (Lane() == 0) work.sums[place] = sum;
}

// The number of threads of the block before this one for which the condition held, plus `before`,
// their number in the previous calls, which is the same for all threads. Called by all threads
// together.
__device__ int32_t CountBefore(bool yes, int32_t* before) {
  __shared__ int32_t of_warp[kMostWarps];
  const unsigned votes = __ballot_sync(kAllLanes, yes);
  const int warp = Thread() / kWarp, warps = Threads() / kWarp;
  __syncthreads();  // the previous call's of_warp may still be read
  if (Lane() == 0) of_warp[warp] = __popc(votes);
  __syncthreads();
  int32_t rank = *before + __popc(votes & ((1u << Lane()) - 1));
  for (int i = 0; i < warps; ++i) {
    if (i < warp) rank += of_warp[i];
    *before += of_warp[i];
  }
  return rank;
}

// One row, on which all threads of a block work together.
class RowInWork {
 public:
  __device__ RowInWork(const DrawBatch& batch, const RowsInWork& work, int32_t node)
      : draw_(batch.draws[node]),
        vocabulary_(batch.rows.vocabulary),
        runs_(work.runs),
        probs_(work.probs + int64_t{node} * work.runs * kProbRun),
        sums_(work.sums + int64_t{node} * work.runs) {}

  __device__ void KeepLikeliest();
  __device__ void Write() const;
  __device__ double Total() const;
  // drawn->count is valid for the thread block once all threads have returned.
  __device__ void Draw(DrawnRow* drawn);

 private:
  // One step of a radix selection: the eight bits from `shift` on of the top_n-th largest
  // probability, among those whose higher bits equal `found`. `left`: how many of these are still
  // to be selected, updated by the call. -1: there are no more than are wanted.
  __device__ int DigitOf(int shift, int found, int32_t* left) const;
  __device__ void SumRun(int run) {
    const double sum = RunTotal(probs_ + int64_t{run} * kProbRun);
    if (Lane() == 0) sums_[run] = sum;
  }
  // As sampling's Drawer: the run in which the running sum of probabilities exceeds `uniform` of
  // the total, and how much of it lies within the run; -1: no probability is left.
  __device__ int RunAt(double uniform, double* within) const;

  const RowDraw& draw_;
  const int32_t vocabulary_, runs_;
  uint16_t* const probs_;
  double* const sums_;
};

__device__ int RowInWork::DigitOf(int shift, int found, int32_t* left) const {
  constexpr int kDigits = 256;
  __shared__ unsigned long long counts[kDigits];
  __syncthreads();  // the previous digit's counts may still be read
  for (int i = Thread(); i < kDigits; i += Threads()) counts[i] = 0;
  __syncthreads();
  for (int32_t id = Thread(); id < vocabulary_; id += Threads()) {
    const int prob = probs_[id];
    if ((prob ^ found) >> shift >> 8 == 0) atomicAdd(&counts[prob >> shift & 255], 1ull);
  }
  __syncthreads();
  int digit = kDigits - 1;
  while (digit >= 0 && counts[digit] <= static_cast<unsigned long long>(*left)) {
    *left -= static_cast<int32_t>(counts[digit--]);
  }
  return digit;
}

// As sampling::MakeDraftProbs with top_n > 0: of tokens with the smallest kept probability, those
// with the lowest ids.
__device__ void RowInWork::KeepLikeliest() {
  int32_t left = draw_.top_n;
  const int high = DigitOf(8, 0, &left);
  if (high < 0) return;
  const int least = high << 8 | DigitOf(0, high << 8, &left);
  if (least == 0) return;
  int32_t before = 0;
  for (int32_t first = 0; first < vocabulary_; first += Threads()) {
    const int32_t id = first + Thread();
    const int prob = id < vocabulary_ ? probs_[id] : 0;
    const int32_t rank = CountBefore(prob == least, &before);
    if (prob != 0 && (prob < least || (prob == least && rank >= left))) probs_[id] = 0;
  }
  __syncthreads();
  for (int run = Thread() / kWarp; run < runs_; run += Threads() / kWarp) SumRun(run);
  __syncthreads();
}

// In the layout of speculation::DraftProbsWriter.
__device__ void RowInWork::Write() const {
  const DraftRowLayout layout = {vocabulary_, draw_.entries};
  uint16_t* const probs = reinterpret_cast<uint16_t*>(draw_.row + layout.id_bytes());
  if (layout.whole()) {
    for (int32_t id = Thread(); id < vocabulary_; id += Threads()) probs[id] = probs_[id];
    return;
  }
  int32_t non_zero = 0;
  for (int32_t first = 0; first < vocabulary_; first += Threads()) {
    const int32_t id = first + Thread();
    CountBefore(id < vocabulary_ && probs_[id] != 0, &non_zero);
  }
  base::TokenId* const ids = reinterpret_cast<base::TokenId*>(draw_.row);
  const int32_t spare = max(0, layout.entries - non_zero);
  int32_t before = 0;
  for (int32_t first = 0; first < vocabulary_; first += Threads()) {
    const int32_t id = first + Thread();
    const uint16_t prob = id < vocabulary_ ? probs_[id] : 0;
    const int32_t rank = CountBefore(prob != 0, &before), zeros = id - rank;
    const int32_t at = rank + min(zeros, spare);
    if (id >= vocabulary_ || (prob == 0 && zeros >= spare) || at >= layout.entries) continue;
    ids[at] = id;
    probs[at] = prob;
  }
  if (Thread() == 0 && layout.entries % 2 != 0) probs[layout.entries] = 0;
}

__device__ double RowInWork::Total() const {
  return StridedSum<kProbSums>(0, vocabulary_,
                               [&](int id) { return base::WidenBFloat16(probs_[id]); });
}

__device__ int RowInWork::RunAt(double uniform, double* within) const {
  double total = 0;
  for (int i = 0; i < runs_; ++i) total += sums_[i];
  const double wanted = uniform * total;
  double before = 0;
  int run = -1;
  for (int i = 0; i < runs_; ++i) {
    if (sums_[i] == 0) continue;
    // Rounding may carry `wanted` past the end: then it is the last run with any probability.
    if (run >= 0) before += sums_[run];
    run = i;
    if (before + sums_[i] > wanted) break;
  }
  *within = wanted - before;
  return run;
}

__device__ void RowInWork::Draw(DrawnRow* drawn) {
  __shared__ float values[kProbRun];
  __shared__ double within;
  __shared__ int run, token;
  for (int32_t sibling = 0; sibling < draw_.siblings; ++sibling) {
    if (Thread() == 0) {
      run = RunAt(sampling::SiblingUniform(draw_.sampling.seed, draw_.site, sibling), &within);
    }
    __syncthreads();
    const int of = run;
    if (of < 0) return;
    uint16_t* const probs = probs_ + int64_t{of} * kProbRun;
    for (int i = Thread(); i < kProbRun; i += Threads()) {
      values[i] = base::WidenBFloat16(probs[i]);
    }
    __syncthreads();
    if (Thread() == 0) {
      double sum = 0;
      for (int i = 0; i < kProbRun && sum <= within; ++i) {
        if (values[i] > 0) token = i;
        sum += values[i];
      }
      drawn->siblings[sibling] = {of * kProbRun + token, probs[token]};
      drawn->count = sibling + 1;
      if (draw_.draw == SiblingDraw::kWithoutReplacement) probs[token] = 0;
    }
    __syncthreads();
    if (draw_.draw == SiblingDraw::kWithoutReplacement && Thread() < kWarp) SumRun(of);
    __syncthreads();
  }
}

// Grid: [nodes].
__global__ __launch_bounds__(kDrawThreads) void DrawRows(DrawBatch batch, RowsInWork work, DrawnRow* all) {
  const int32_t node = static_cast<int32_t>(blockIdx.x);
  RowInWork row(batch, work, node);
  if (batch.draws[node].top_n > 0) row.KeepLikeliest();
  row.Write();
  const double total = row.Total();
  DrawnRow* const drawn = all + node;
  if (Thread() == 0) {
    drawn->total = total;
    drawn->count = 0;
  }
  __syncthreads();  // drawing changes the row
  row.Draw(drawn);
}

// Grid: [rows].
__global__ __launch_bounds__(kValidateThreads) void ValidateRows(const uint8_t* bytes, DraftRowLayout layout, DraftRowFacts* facts) {
  __shared__ unsigned long long highest,
      last_after;  // last_after: entries from the first misplaced one on
  if (Thread() == 0) highest = last_after = 0;
  __syncthreads();
  const uint8_t* const row = bytes + blockIdx.x * layout.row_bytes();
  const auto* const ids = reinterpret_cast<const base::TokenId*>(row);
  const auto* const probs = reinterpret_cast<const uint16_t*>(row + layout.id_bytes());
  unsigned long long high = 0;
  for (int32_t i = Thread(); i < layout.entries; i += Threads()) {
    high = max(high, static_cast<unsigned long long>(probs[i]));
    if (layout.whole()) continue;
    const base::TokenId previous = i == 0 ? -1 : ids[i - 1];
    if (ids[i] > previous && ids[i] < layout.vocabulary) continue;
    atomicMax(&last_after, static_cast<unsigned long long>(layout.entries - i));
  }
  atomicMax(&highest, high);
  __syncthreads();
  const auto misplaced = layout.entries - static_cast<int32_t>(last_after);
  if (misplaced < layout.entries) {
    if (Thread() != 0) return;
    facts[blockIdx.x] = {.highest = static_cast<uint16_t>(highest),
                         .misplaced = misplaced,
                         .id = ids[misplaced],
                         .previous = misplaced == 0 ? -1 : ids[misplaced - 1]};
    return;
  }
  const auto prob_at = [&](int i) { return base::WidenBFloat16(probs[i]); };
  const double total = layout.whole() ? StridedSum<kProbSums>(0, layout.entries, prob_at)
                                      : StridedSum<kProbSums>(0, kProbSums, [&](int lane) {
                                          double sum = 0;
                                          for (int32_t i = 0; i < layout.entries; ++i) {
                                            if (ids[i] % kProbSums == lane) sum += prob_at(i);
                                          }
                                          return sum;
                                        });
  if (Thread() == 0)
    facts[blockIdx.x] = {.total = total, .highest = static_cast<uint16_t>(highest)};
}

}  // namespace

size_t DrawBytes(const RoundBatch& rows) {
  const size_t runs = static_cast<size_t>(rows.nodes) * ChunksOf(rows.vocabulary);
  return runs * (sizeof(double) + kProbRun * sizeof(uint16_t)) + RowFilters::Bytes(rows);
}

absl::Status EnqueueDraws(const DrawBatch& batch, void* workspace, DrawnRow* drawn, Stream stream) {
  const RoundBatch& rows = batch.rows;
  const RowsInWork work = RowsInWork::In(rows, workspace);
  absl::Status filtered = EnqueueRowFilters(rows, work.filters, stream);
  if (!filtered.ok()) return filtered;
  const ChunkGrid shape = GridOfChunks(rows.nodes, work.runs);
  absl::Status launched =
      Launch("draft probs", ExpRuns, shape.grid, shape.block, stream, rows, work);
  if (!launched.ok()) return launched;
  return Launch("draft draws", DrawRows, dim3(rows.nodes), dim3(kDrawThreads), stream, batch, work,
                drawn);
}

absl::Status EnqueueValidate(const uint8_t* bytes, int32_t rows, const DraftRowLayout& layout,
                             DraftRowFacts* facts, Stream stream) {
  return Launch("draft rows' facts", ValidateRows, dim3(rows), dim3(kValidateThreads), stream,
                bytes, layout, facts);
}

}  // namespace specfabric::verification::cuda
