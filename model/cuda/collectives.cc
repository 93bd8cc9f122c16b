#include "model/cuda/collectives.h"

#include <nccl.h>

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
  if (!drawn.ok()) return drawn;
  return id;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Collectives>> Collectives::Create(
    Communicator* host, const Device* device, const CollectivesOptions& options) {
  std::unique_ptr<Collectives> collectives(new Collectives(device, host->size(), options));
  if (host->size() == 1) return collectives;
  absl::StatusOr<ncclUniqueId> id = SharedId(host);
  if (!id.ok()) return id.status();
  absl::Status joined =
      NcclStatus(ncclCommInitRank(&collectives->communicator_, host->size(), *id, host->rank()),
                 "joining the ranks");
  if (!joined.ok()) return joined;
  if (options.peer_sums) {
    absl::StatusOr<std::unique_ptr<PeerSum>> peers = PeerSum::Create(host, device);
    if (!peers.ok()) return peers.status();
    collectives->peers_ = *std::move(peers);
  }
  return collectives;
}

Collectives::~Collectives() {
  if (communicator_ != nullptr) ncclCommDestroy(communicator_);
}

absl::Status Collectives::Sum(float* data, int64_t count) {
  if (ranks_ == 1) return absl::OkStatus();
  if (peers_ != nullptr && peers_->Takes(count)) {
    return peers_->Sum(data, count, device_->stream());
  }
  const size_t size = static_cast<size_t>(count);
  if (!options_.batch_invariant) {
    return NcclStatus(
        ncclAllReduce(data, data, size, ncclFloat32, ncclSum, communicator_, device_->stream()),
        "a sum");
  }
  const size_t bytes = ranks_ * size * sizeof(float);
  if (parts_.bytes() < bytes) {
    // What was enqueued may still read the smaller one.
    if (absl::Status done = device_->Finish(); !done.ok()) return done;
    if (absl::Status reserved = parts_.Reserve(bytes); !reserved.ok()) return reserved;
  }
  absl::Status status = NcclStatus(
      ncclAllGather(data, parts_.As<float>(), size, ncclFloat32, communicator_, device_->stream()),
      "a gathering");
  status.Update(EnqueueSumParts(parts_.As<float>(), ranks_, count, data, device_->stream()));
  return status;
}

}  // namespace specfabric::model::cuda
