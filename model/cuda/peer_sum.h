#ifndef SPECFABRIC_MODEL_CUDA_PEER_SUM_H_
#define SPECFABRIC_MODEL_CUDA_PEER_SUM_H_

// One-shot sums over the GPUs of one process that reach each other's memory (NVLink, or PCIe with
// peer access): for the few rows of a decode or verification step, where a collective's time is its
// number of hops and not its bytes. Every GPU writes its part where all others can read it, signals
// them, waits for their signals, and adds all parts itself by the binary tree over the ranks of
// communicator.h: the bits are those of the CPU, and of the gathered sum in collectives.h.
//
// A block synchronises only with the same block of the other GPUs: it has its own flags, count of
// sums, and buffer for its part. The buffer is double: when a block writes a half again, two sums
// later, it has seen all others begin the sum in between, so they have finished reading that half.
// The counts are in GPU memory, so that a captured graph can be replayed.

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/device.h"
#include "base/cuda/memory.h"
#include "model/cuda/layers.h"
#include "model/parallel/communicator.h"

namespace specfabric::model::cuda {

constexpr int kMaxPeers = 8;
constexpr int kPeerBlocks = 32, kPeerThreads = 256;

// Up to so many floats one shot is faster than a ring or a tree: 512 KiB for up to 4 GPUs, 256 KiB
// for up to 8 (the thresholds of vLLM's custom_all_reduce.cuh for GPUs joined by NVLink). 0: never.
constexpr int64_t MostPeerFloats(int ranks) {
  return ranks > kMaxPeers ? 0 : (ranks > 4 ? 256 : 512) * 1024 / int64_t{sizeof(float)};
}

// The kernel's argument; [r] is memory of rank r's GPU.
struct PeerSumArgs {
  std::array<float*, kMaxPeers> parts = {};  // [2][kPeerBlocks][floats_each]
  // [kPeerBlocks][kMaxPeers]: how many sums the block has begun on each rank's GPU.
  std::array<uint32_t*, kMaxPeers> begun = {};
  uint32_t* ended = nullptr;  // [kPeerBlocks] sums, on this GPU
  int64_t floats_each = 0;    // of a block
  int32_t rank = 0, ranks = 0;
};

// peer_sum_kernel.cu
absl::Status EnqueuePeerSum(const PeerSumArgs& args, float* data, int64_t count,
                            base::cuda::Stream stream);
// Whether a block's part holds its share of so many rows, and registers a row.
bool SumsAndNorms(const PeerSumArgs& args, int32_t rows, int32_t hidden);
absl::Status EnqueuePeerSumAndNorm(const PeerSumArgs& args, const NormArgs& norm,
                                   base::cuda::Stream stream);

// Owned by one rank's thread. The enqueued work of all ranks must have finished before one of them
// destroys its PeerSum.
class PeerSum {
 public:
  // Called by every rank's thread at the same time; makes one sum and compares it with the CPU's.
  // FailedPrecondition, on a rank whose GPU cannot access another one's memory, or if there are too
  // many; Internal: the sum is wrong; ResourceExhausted: no memory. Aborted: another rank failed;
  // if one fails, all do. Should the GPUs wait for each other forever, the log's last line says
  // what to turn off.
  static absl::StatusOr<std::unique_ptr<PeerSum>> Create(Communicator* host,
                                                         const base::cuda::Device* device);

  // The same for all ranks.
  bool Takes(int64_t count) const { return count <= MostPeerFloats(args_.ranks); }
  // Enqueues: data[i] becomes the sum over ranks. All ranks make the same calls in the same order.
  // A rank that does not is waited for forever, as in NCCL: see StepWatchdog.
  absl::Status Sum(float* data, int64_t count, base::cuda::Stream stream) const;
  // The same for whole rows at once: norm.added is first summed over ranks, but not written; then
  // as EnqueueAddAndNorm, with the same bits. False: it does not take so many, or such, rows.
  bool TakesNorm(int32_t rows, int32_t hidden) const {
    return Takes(int64_t{rows} * hidden) && SumsAndNorms(args_, rows, hidden);
  }
  absl::Status SumAndNorm(const NormArgs& norm, base::cuda::Stream stream) const {
    return EnqueuePeerSumAndNorm(args_, norm, stream);
  }

 private:
  PeerSum() = default;
  absl::Status Check(Communicator* host, const base::cuda::Device& device) const;

  base::cuda::DeviceBuffer memory_;  // this rank's parts, flags and counts
  PeerSumArgs args_;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_PEER_SUM_H_
