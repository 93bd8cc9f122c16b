#include "model/cuda/peer_sum.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cuda/error.h"
#include "model/cuda/rank_exchange.h"
#include "spdlog/spdlog.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::Device;
using base::cuda::DeviceBuffer;
using base::cuda::PinnedBuffer;
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

// Lets the current GPU, `mine`, access the other's memory.
absl::Status Reach(int32_t mine, int32_t other) {
  int can = 0;
  absl::Status asked =
      ToStatus(cudaDeviceCanAccessPeer(&can, mine, other), "asking for peer access");
  if (!asked.ok()) return asked;
  if (can == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("GPU ", mine, " cannot access the memory of GPU ", other));
  }
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(other, 0);
  if (enabled == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();  // else the next launch would report it
  return enabled == cudaErrorPeerAccessAlreadyEnabled ? absl::OkStatus()
                                                      : ToStatus(enabled, "peer access");
}

absl::Status ReachAll(const std::vector<Introduction>& all, int rank) {
  for (int r = 0; r < static_cast<int>(all.size()); ++r) {
    if (r == rank) continue;
    if (absl::Status reached = Reach(all[rank].ordinal, all[r].ordinal); !reached.ok()) {
      return reached;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerSum>> PeerSum::Create(Communicator* host, const Device* device) {
  const int64_t most = MostPeerFloats(host->size());
  if (most == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(host->size(), " GPUs sum; allowed: at most ", kMaxPeers));
  }
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
  absl::Status reached = AgreeOn(host, ReachAll(all, args.rank));
  if (!reached.ok()) return reached;
  for (int r = 0; r < args.ranks; ++r) {
    char* const base = static_cast<char*>(all[r].memory);
    args.parts[r] = reinterpret_cast<float*>(base);
    args.begun[r] = reinterpret_cast<uint32_t*>(base + part_bytes);
  }
  args.ended = reinterpret_cast<uint32_t*>(sum->memory_.As<char>() + part_bytes + kFlagBytes);
  if (absl::Status right = sum->Check(host, *device); !right.ok()) return right;
  return sum;
}

// One sum in which every block takes part, beside that of the host.
absl::Status PeerSum::Check(Communicator* host, const Device& device) const {
  constexpr int64_t kCount = int64_t{kPeerBlocks} * kPeerThreads + 1;
  constexpr size_t kBytes = kCount * sizeof(float);
  std::vector<float> expected(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    expected[i] = static_cast<float>(i % 1021) / 7 + static_cast<float>(host->rank());
  }
  absl::StatusOr<DeviceBuffer> data = DeviceBuffer::Create(kBytes);
  absl::StatusOr<PinnedBuffer> staged = PinnedBuffer::Create(kBytes);
  absl::Status status = data.status();
  status.Update(staged.status());
  if (status = AgreeOn(host, status); !status.ok()) return status;
  if (host->rank() == 0) {
    spdlog::info(
        "trying sums over {} GPUs' memory; if this is the last line, start with "
        "--disable_features=peer_sums",
        host->size());
  }
  std::memcpy(staged->As<void>(), expected.data(), kBytes);
  host->AllReduceSum(absl::MakeSpan(expected));
  status = device.ToDevice(staged->As<void>(), kBytes, data->As<void>());
  status.Update(Sum(data->As<float>(), kCount, device.stream()));
  status.Update(device.ToHost(data->As<void>(), kBytes, staged->As<void>()));
  status.Update(device.Finish());
  const auto same_bits = [](float sum, uint32_t bits) {
    return std::bit_cast<uint32_t>(sum) == bits;
  };
  if (status.ok() &&
      !std::equal(expected.begin(), expected.end(), staged->As<uint32_t>(), same_bits)) {
    status = absl::InternalError("a sum over the GPUs' memory is wrong");
  }
  return AgreeOn(host, status);
}

absl::Status PeerSum::Sum(float* data, int64_t count, Stream stream) const {
  return EnqueuePeerSum(args_, data, count, stream);
}

}  // namespace specfabric::model::cuda
