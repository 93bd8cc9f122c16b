#include "model/cuda/collectives.h"

#include <nccl.h>

#include <chrono>
#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "model/cuda/layers.h"
#include "model/cuda/rank_exchange.h"

namespace specfabric::model::cuda {
namespace {

absl::Status NcclStatus(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("NCCL, ", what, ": ", ncclGetErrorString(result)));
}

// What the first rank drew, on every rank.
absl::StatusOr<ncclUniqueId> SharedId(Communicator* host) {
  ncclUniqueId id = {};
  absl::Status drawn = absl::OkStatus();
  if (host->rank() == 0) drawn = NcclStatus(ncclGetUniqueId(&id), "an id");
  id = FromAllRanks(host, id)[0];
  drawn = AgreeOn(host, drawn);
  if (!drawn.ok()) return drawn;
  return id;
}

// A communicator that does not block may still be at work when a call returns, and must not be
// called again before it is done.
absl::Status Settle(ncclResult_t result, ncclComm_t communicator, base::Nanos deadline,
                    const char* what) {
  while (result == ncclInProgress) {
    if (base::Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("NCCL, ", what, ": it takes too long"));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    ncclResult_t state = ncclSuccess;
    result = ncclCommGetAsyncError(communicator, &state);
    if (result == ncclSuccess) result = state;
  }
  return NcclStatus(result, what);
}

// How long a step takes is watched elsewhere.
absl::Status Enqueued(ncclResult_t result, ncclComm_t communicator, const char* what) {
  return Settle(result, communicator, std::numeric_limits<base::Nanos>::max(), what);
}

}  // namespace

absl::Status Collectives::Join(Communicator* host) {
  absl::StatusOr<ncclUniqueId> id = SharedId(host);
  if (!id.ok()) return id.status();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const base::Nanos deadline = base::Now() + options_.join_timeout;
  const ncclResult_t begun =
      ncclCommInitRankConfig(&communicator_, host->size(), *id, host->rank(), &config);
  return AgreeOn(host, Settle(begun, communicator_, deadline, "joining the ranks"));
}

absl::StatusOr<std::unique_ptr<Collectives>> Collectives::Create(
    Communicator* host, const Device* device, const CollectivesOptions& options) {
  std::unique_ptr<Collectives> collectives(new Collectives(device, host->size(), options));
  if (host->size() == 1) return collectives;
  if (absl::Status joined = collectives->Join(host); !joined.ok()) return joined;
  if (options.peer_sums) {
    absl::StatusOr<std::unique_ptr<PeerSum>> peers = PeerSum::Create(host, device);
    if (!peers.ok()) return peers.status();
    collectives->peers_ = *std::move(peers);
  }
  return collectives;
}

Collectives::~Collectives() {
  // Nothing is under way in a group that is well; in one that is not, ncclCommDestroy might wait
  // for ranks that are gone.
  if (communicator_ != nullptr) ncclCommAbort(communicator_);
}

absl::Status Collectives::Sum(float* data, int64_t count) {
  if (ranks_ == 1) return absl::OkStatus();
  if (peers_ != nullptr && peers_->Takes(count)) {
    return peers_->Sum(data, count, device_->stream());
  }
  const size_t size = static_cast<size_t>(count);
  if (!options_.batch_invariant) {
    return Enqueued(
        ncclAllReduce(data, data, size, ncclFloat32, ncclSum, communicator_, device_->stream()),
        communicator_, "a sum");
  }
  const size_t bytes = ranks_ * size * sizeof(float);
  if (parts_.bytes() < bytes) {
    // What was enqueued may still read the smaller one.
    if (absl::Status done = device_->Finish(); !done.ok()) return done;
    if (absl::Status reserved = parts_.Reserve(bytes); !reserved.ok()) return reserved;
  }
  absl::Status status = Enqueued(
      ncclAllGather(data, parts_.As<float>(), size, ncclFloat32, communicator_, device_->stream()),
      communicator_, "a gathering");
  status.Update(EnqueueSumParts(parts_.As<float>(), ranks_, count, data, device_->stream()));
  return status;
}

}  // namespace specfabric::model::cuda
