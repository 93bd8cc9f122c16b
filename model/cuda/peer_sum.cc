#include "model/cuda/peer_sum.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "base/cuda/error.h"
#include "model/cuda/rank_exchange.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::Device;
using base::cuda::DeviceBuffer;
using base::cuda::Stream;
using base::cuda::ToStatus;

constexpr size_t kFlagBytes = sizeof(uint32_t) * kPeerBlocks * kMaxPeers;
constexpr size_t kCountBytes = sizeof(uint32_t) * kPeerBlocks;

// What the ranks exchange.
struct Introduction {
  int32_t ordinal;
  int32_t padding;
  void* memory;
};

// False: the current GPU cannot access the other's memory.
absl::StatusOr<bool> Reach(int32_t mine, int32_t other) {
  int can = 0;
  absl::Status asked =
      ToStatus(cudaDeviceCanAccessPeer(&can, mine, other), "asking for peer access");
  if (!asked.ok() || can == 0) return asked.ok() ? absl::StatusOr<bool>(false) : asked;
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(other, 0);
  if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();  // else the next launch would report it
    return true;
  }
  absl::Status status = ToStatus(enabled, "peer access");
  if (!status.ok()) return status;
  return true;
}

absl::StatusOr<bool> ReachAll(const std::vector<Introduction>& all, int rank) {
  for (int r = 0; r < static_cast<int>(all.size()); ++r) {
    if (r == rank) continue;
    absl::StatusOr<bool> reached = Reach(all[rank].ordinal, all[r].ordinal);
    if (!reached.ok() || !*reached) return reached;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerSum>> PeerSum::Create(Communicator* host, const Device* device) {
  const int64_t most = MostPeerFloats(host->size());
  if (most == 0) return nullptr;
  std::unique_ptr<PeerSum> sum(new PeerSum());
  PeerSumArgs& args = sum->args_;
  // Rounds of all blocks; in the last round some blocks may have nothing to do.
  const int64_t round = int64_t{kPeerBlocks} * kPeerThreads;
  // And at least a row of the largest models, for sums of whole rows.
  constexpr int64_t kLongestRow = 8192;
  args.floats_each = std::max((most + round - 1) / round * kPeerThreads, kLongestRow);
  args.rank = host->rank();
  args.ranks = host->size();
  const size_t part_bytes = 2 * sizeof(float) * kPeerBlocks * args.floats_each;
  absl::StatusOr<DeviceBuffer> memory = DeviceBuffer::Create(part_bytes + kFlagBytes + kCountBytes);
  absl::Status status = memory.status();
  if (status.ok()) {
    sum->memory_ = *std::move(memory);
    status = ToStatus(cudaMemset(sum->memory_.As<char>() + part_bytes, 0, kFlagBytes + kCountBytes),
                      "a memset");
    status.Update(ToStatus(cudaDeviceSynchronize(), "a memset"));
  }
  const std::vector<Introduction> all = FromAllRanks<Introduction>(
      host, {.ordinal = device->ordinal(), .padding = 0, .memory = sum->memory_.As<void>()});
  // Access is enabled only to memory that exists.
  if (absl::Status agreed = AgreeOn(host, status); !agreed.ok()) return agreed;
  absl::StatusOr<bool> reached = ReachAll(all, args.rank);
  if (absl::Status agreed = AgreeOn(host, reached.status()); !agreed.ok()) return agreed;
  float blind = *reached ? 0 : 1;
  host->AllReduceSum(absl::MakeSpan(&blind, 1));
  if (blind != 0) return nullptr;
  for (int r = 0; r < args.ranks; ++r) {
    char* const base = static_cast<char*>(all[r].memory);
    args.parts[r] = reinterpret_cast<float*>(base);
    args.begun[r] = reinterpret_cast<uint32_t*>(base + part_bytes);
  }
  args.ended = reinterpret_cast<uint32_t*>(sum->memory_.As<char>() + part_bytes + kFlagBytes);
  return sum;
}

absl::Status PeerSum::Sum(float* data, int64_t count, Stream stream) const {
  return EnqueuePeerSum(args_, data, count, stream);
}

}  // namespace specfabric::model::cuda
