#include "verification/cuda/draft_rows.h"

#include <algorithm>

#include "base/bfloat16.h"
#include "base/cuda/launch.h"
#include "base/cuda/reduce.h"
#include "base/cuda/tensor_core.h"
#include "base/exp.h"
#include "verification/cuda/chunk_sum.h"
#include "verification/cuda/prefix_search.h"
#include "verification/cuda/round_rows.h"
#include "verification/cuda/row_total.h"

namespace specfabric::verification::cuda {
namespace {

using base::cuda::AwaitInputs;
using base::cuda::kAllLanes;
using base::cuda::kWarp;
using base::cuda::Launch;
using base::cuda::LaunchOptions;
using base::cuda::LetNextBegin;
using base::cuda::Stream;
using base::cuda::Thread;
using base::cuda::Threads;

using sampling::kLargestProb;
using sampling::kProbRun;
using sampling::kProbSums;
using speculation::SiblingDraw;

static_assert(kProbRun == verification::kRowChunk);  // so that a chunk is a run
static_assert(kProbSums == kChunkSums);
constexpr int kRowThreads = kTotalThreads;  // that work together on a row
constexpr int kMostWarps = 32;              // a block

// The workspace in which the rows of a batch are computed.
struct RowsInWork {
  int32_t runs = 0;           // a row
  double* sums = nullptr;     // [nodes][runs], of each run's probs
  uint16_t* probs = nullptr;  // [nodes][runs][kProbRun], of the rows that are cut
  RowFilters filters = {};

  static RowsInWork In(const RoundBatch& rows, void* workspace, void* joins) {
    RowsInWork work = {.runs = ChunksOf(rows.vocabulary)};
    const size_t runs = static_cast<size_t>(rows.nodes) * work.runs;
    work.sums = static_cast<double*>(workspace);
    work.filters = RowFilters::In(rows, work.sums + runs, joins);
    work.probs = reinterpret_cast<uint16_t*>(work.filters.of_node + rows.nodes);
    return work;
  }
  // Where the probabilities of a row are, [vocabulary]: in the row that is sent, unless they have
  // to be cut to the likeliest first.
  __device__ uint16_t* ProbsOf(const RowDraw& draw, int32_t node) const {
    return draw.top_n > 0 ? probs + int64_t{node} * runs * kProbRun
                          : reinterpret_cast<uint16_t*>(draw.row);
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
    if (filter_.least != 0 && Competitor(logit, id) < filter_.least) return 0;
    return sampling::RoundProb(base::ScaledExp(logit, ScoreOf(filter_.best), scale_));
  }

 private:
  const RowFilter filter_;
  const base::ExpScale scale_;
  base::TokenId chosen_ = base::kNoToken;
};

// Partial sum i of a run's values, as sampling::TotalProb has them.
template <typename ValueAt>
__device__ double PartialSum(int i, ValueAt value_at) {
  double sum = 0;
  for (int at = i; at < kProbRun; at += kProbSums) sum += value_at(at);
  return sum;
}

// sampling::TotalProb of a run of [size] entries. Called by all lanes of a warp together.
__device__ double RunTotal(const uint16_t* run, int32_t size) {
  constexpr int kOfLane = kProbSums / kWarp;
  double sums[kOfLane];
  SPECFABRIC_UNROLL
  for (int j = 0; j < kOfLane; ++j) {
    sums[j] = PartialSum(j * kWarp + Lane(),
                         [&](int at) { return at < size ? base::WidenBFloat16(run[at]) : 0.0f; });
  }
  double total = 0;
  SPECFABRIC_UNROLL
  for (int j = 0; j < kOfLane; ++j) {
    for (int lane = 0; lane < kWarp; ++lane) total += __shfl_sync(kAllLanes, sums[j], lane);
  }
  return total;
}

// Grid: GridOfChunks.
__global__ __launch_bounds__(kChunkThreads) void ExpRuns(DrawBatch batch, RowsInWork work) {
  AwaitInputs();
  constexpr int kStride = kProbSums + 1;  // no two warps' sums in one bank
  __shared__ double partial[kChunkWarps * kStride];
  const RoundBatch& rows = batch.rows;
  const int32_t node = static_cast<int32_t>(blockIdx.y);
  const RoundRow row = RowOf(rows, node);
  const int run = ChunkOfWarp(), warp = Thread() / kWarp;
  if (run < work.runs) {
    const int32_t first = run * kProbRun, size = min(kProbRun, rows.vocabulary - first);
    const ChunkPart logits = ReadChunk(row.logits + first, size, 0);
    const DraftProbOf prob_of(work.filters.of_node[node], row.round->sampling);
    uint16_t* const probs = work.ProbsOf(batch.draws[node], node) + first;
    const bool aligned = AlignedFours(probs, sizeof(uint16_t));
    double sums[kFour] = {};
    SPECFABRIC_UNROLL
    for (int group = 0; group < kChunkGroups; ++group) {
      const int at = PlaceInChunk(group);
      uint16_t four[kFour];
      SPECFABRIC_UNROLL
      for (int i = 0; i < kFour; ++i) {
        four[i] = at + i < size ? prob_of(logits.of[group][i], first + at + i) : uint16_t{0};
        sums[i] += base::WidenBFloat16(four[i]);
      }
      if (aligned && at + kFour <= size) {
        *reinterpret_cast<ushort4*>(probs + at) = {four[0], four[1], four[2], four[3]};
        continue;
      }
      for (int i = 0; i < kFour && at + i < size; ++i) probs[at + i] = four[i];
    }
    SPECFABRIC_UNROLL
    for (int i = 0; i < kFour; ++i) partial[warp * kStride + kFour * Lane() + i] = sums[i];
  }
  LetNextBegin();
  __syncthreads();
  // One thread a run adds up its partial sums, in order.
  const int mine = static_cast<int>(blockIdx.x) * (Threads() / kWarp) + Thread();
  if (Thread() >= Threads() / kWarp || mine >= work.runs) return;
  double total = 0;
  for (int i = 0; i < kProbSums; ++i) total += partial[Thread() * kStride + i];
  work.sums[int64_t{node} * work.runs + mine] = total;
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

// One row, on which all threads of a block work together, or one warp where a comment says so.
class RowInWork {
 public:
  __device__ RowInWork(const DrawBatch& batch, const RowsInWork& work, int32_t node)
      : draw_(batch.draws[node]),
        vocabulary_(batch.rows.vocabulary),
        runs_(work.runs),
        probs_(work.ProbsOf(draw_, node)),
        sums_(work.sums + int64_t{node} * work.runs) {}

  __device__ void KeepLikeliest();
  __device__ void Write() const;
  __device__ double Total() const {
    return RowTotal(probs_, vocabulary_, [](uint16_t /*prob*/) {});
  }
  // By one warp, which is the whole block or its first.
  __device__ void Draw(DrawnRow* drawn);

 private:
  // One step of a radix selection: the eight bits from `shift` on of the top_n-th largest
  // probability, among those whose higher bits equal `found`. `left`: how many of these are still
  // to be selected, updated by the call. -1: there are no more than are wanted.
  __device__ int DigitOf(int shift, int found, int32_t* left) const;
  __device__ int32_t SizeOf(int run) const { return min(kProbRun, vocabulary_ - run * kProbRun); }

  // Of Draw: in shared memory, the values of the run that is drawn from.
  struct Run {
    float values[kProbRun / kWarp * (kWarp + 1)];
    double partial[kProbSums];
    __device__ float& At(int i) { return values[i + i / kWarp]; }  // no two lanes' in one bank
  };
  // Fills it with the run's values, 0 for the siblings that were drawn and are not drawn again. By
  // one warp.
  __device__ void ReadRun(int run, const DrawnRow& drawn, Run* values) const;
  __device__ void SumRun(int run, Run* values);
  // The run, and the token within it, at which the running sum of probabilities exceeds `uniform`
  // of the total. Its values are in *values then. False: it cannot be told without adding up in
  // order. By one warp.
  __device__ bool FindToken(double uniform, const DrawnRow& drawn, Run* values, int* run,
                            int* token) const;
  // The same as sampling's Drawer does it; *run is -1 if no probability is left. By one warp.
  __device__ void FindTokenInOrder(double uniform, const DrawnRow& drawn, Run* values, int* run,
                                   int* token) const;
  // The run, and how much of `uniform` of the total lies within it. By one thread.
  __device__ int RunAt(double uniform, double* within) const;

  const RowDraw& draw_;
  const int32_t vocabulary_, runs_;
  uint16_t* const probs_;
  double* const sums_;
};

__device__ int RowInWork::DigitOf(int shift, int found, int32_t* left) const {
  constexpr int kDigits = 256;
  __shared__ unsigned counts[kDigits];  // without the zeros, which are never selected
  __syncthreads();                      // the previous digit's counts may still be read
  for (int i = Thread(); i < kDigits; i += Threads()) counts[i] = 0;
  __syncthreads();
  for (int32_t id = Thread(); id < vocabulary_; id += Threads()) {
    const int prob = probs_[id];
    if (prob != 0 && (prob ^ found) >> shift >> 8 == 0) {
      atomicAdd(&counts[prob >> shift & 255], 1u);
    }
  }
  __syncthreads();
  int digit = kDigits - 1;
  while (digit >= 0 && counts[digit] <= static_cast<unsigned>(*left)) {
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
  int32_t before = 0;
  for (int32_t first = 0; first < vocabulary_; first += Threads()) {
    const int32_t id = first + Thread();
    const int prob = id < vocabulary_ ? probs_[id] : 0;
    const int32_t rank = CountBefore(prob == least, &before);
    if (prob != 0 && (prob < least || (prob == least && rank >= left))) probs_[id] = 0;
  }
  __syncthreads();
  for (int run = Thread() / kWarp; run < runs_; run += Threads() / kWarp) {
    const double total = RunTotal(probs_ + int64_t{run} * kProbRun, SizeOf(run));
    if (Lane() == 0) sums_[run] = total;
  }
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

__device__ void RowInWork::ReadRun(int run, const DrawnRow& drawn, Run* values) const {
  __syncwarp();  // the previous run's values may still be read
  const int32_t size = SizeOf(run);
  const uint16_t* const probs = probs_ + int64_t{run} * kProbRun;
  for (int i = Lane(); i < kProbRun; i += kWarp) {
    values->At(i) = i < size ? base::WidenBFloat16(probs[i]) : 0.0f;
  }
  __syncwarp();
  if (draw_.draw != SiblingDraw::kWithoutReplacement) return;
  for (int i = Lane(); i < drawn.count; i += kWarp) {
    const base::TokenId token = drawn.siblings[i].token;
    if (token / kProbRun == run) values->At(token % kProbRun) = 0;
  }
  __syncwarp();
}

__device__ void RowInWork::SumRun(int run, Run* values) {
  for (int i = Lane(); i < kProbSums; i += kWarp) {
    values->partial[i] = PartialSum(i, [&](int at) { return values->At(at); });
  }
  __syncwarp();
  if (Lane() == 0) {
    double total = 0;
    for (double sum : values->partial) total += sum;
    sums_[run] = total;
  }
  __syncwarp();
}

__device__ bool RowInWork::FindToken(double uniform, const DrawnRow& drawn, Run* values, int* run,
                                     int* token) const {
  double total = 0;  // about
  for (int i = Lane(); i < runs_; i += kWarp) total += sums_[i];
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    total += __shfl_xor_sync(kAllLanes, total, distance);
  }
  const double wanted = uniform * total;
  const double slack = PrefixSlack(2 * (runs_ + kProbRun), total);
  const PrefixHit of_runs =
      FindPrefixAbove(runs_, 0, wanted, slack, [&](int i) { return sums_[i]; });
  *run = of_runs.index;
  if (*run < 0) return false;
  ReadRun(*run, drawn, values);
  const PrefixHit within = FindPrefixAbove(kProbRun, of_runs.before, wanted, slack,
                                           [&](int i) { return values->At(i); });
  *token = within.index;
  return *token >= 0;
}

__device__ void RowInWork::FindTokenInOrder(double uniform, const DrawnRow& drawn, Run* values,
                                            int* run, int* token) const {
  double within = 0;
  *run = __shfl_sync(kAllLanes, Lane() == 0 ? RunAt(uniform, &within) : 0, 0);
  if (*run < 0) return;
  ReadRun(*run, drawn, values);
  *token = 0;
  double sum = 0;
  for (int i = 0; i < kProbRun && sum <= within && Lane() == 0; ++i) {
    if (values->At(i) > 0) *token = i;
    sum += values->At(i);
  }
  *token = __shfl_sync(kAllLanes, *token, 0);
}

__device__ void RowInWork::Draw(DrawnRow* drawn) {
  __shared__ Run values;
  if (Lane() == 0) drawn->count = 0;
  __syncwarp();
  for (int32_t sibling = 0; sibling < draw_.siblings; ++sibling) {
    const double uniform = sampling::SiblingUniform(draw_.sampling.seed, draw_.site, sibling);
    int run = -1, token = -1;
    if (!FindToken(uniform, *drawn, &values, &run, &token)) {
      FindTokenInOrder(uniform, *drawn, &values, &run, &token);
    }
    if (run < 0) return;
    const base::TokenId id = run * kProbRun + token;
    __syncwarp();
    if (Lane() == 0) {
      drawn->siblings[sibling] = {id, probs_[id]};
      drawn->count = sibling + 1;
      if (draw_.draw == SiblingDraw::kWithoutReplacement) values.At(token) = 0;
    }
    __syncwarp();
    if (draw_.draw == SiblingDraw::kWithoutReplacement) SumRun(run, &values);
  }
}

// Of the rows that are cut to their likeliest tokens. Grid: [nodes].
__global__ __launch_bounds__(kRowThreads, 1) void CutRows(DrawBatch batch, RowsInWork work) {
  AwaitInputs();
  const int32_t node = static_cast<int32_t>(blockIdx.x);
  if (batch.draws[node].top_n <= 0) return;
  RowInWork row(batch, work, node);
  row.KeepLikeliest();
  row.Write();
}

// One block adds up a row while another draws from it. Grid: [2][nodes].
__global__ __launch_bounds__(kRowThreads) void DrawRows(DrawBatch batch, RowsInWork work,
                                                        DrawnRow* all) {
  AwaitInputs();
  const int32_t node = static_cast<int32_t>(blockIdx.y);
  RowInWork row(batch, work, node);
  if (blockIdx.x == 1) {
    if (Thread() < kWarp) row.Draw(all + node);
    return;
  }
  const double total = row.Total();
  if (Thread() == 0) all[node].total = total;
}

}  // namespace

size_t DrawBytes(const RoundBatch& rows) {
  const size_t runs = static_cast<size_t>(rows.nodes) * ChunksOf(rows.vocabulary);
  return runs * (sizeof(double) + kProbRun * sizeof(uint16_t)) + RowFilters::Bytes(rows);
}

absl::Status EnqueueDraws(const DrawBatch& batch, void* workspace, void* joins, DrawnRow* drawn,
                          Stream stream) {
  const RoundBatch& rows = batch.rows;
  const RowsInWork work = RowsInWork::In(rows, workspace, joins);
  absl::Status status = EnqueueRowFilters(rows, work.filters, /*only_filtered=*/false, stream);
  if (!status.ok()) return status;
  const LaunchOptions options = {.overlaps = true};
  const ChunkGrid shape = GridOfChunks(rows.nodes, work.runs);
  status.Update(
      Launch("draft probs", ExpRuns, shape.grid, shape.block, options, stream, batch, work));
  if (status.ok() && batch.cut) {
    status.Update(Launch("draft rows' likeliest", CutRows, dim3(rows.nodes), dim3(kRowThreads),
                         options, stream, batch, work));
  }
  if (!status.ok()) return status;
  return Launch("draft draws", DrawRows, dim3(2, rows.nodes), dim3(kRowThreads), options, stream,
                batch, work, drawn);
}

}  // namespace specfabric::verification::cuda
