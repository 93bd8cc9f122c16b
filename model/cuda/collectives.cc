#include "model/cuda/collectives.h"

#include <nccl.h>

#include <array>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/cuda/layers.h"

namespace specfabric::model::cuda {
namespace {

absl::Status NcclStatus(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("NCCL, ", what, ": ", ncclGetErrorString(result)));
}

// What the first rank drew, on every rank.
absl::StatusOr<ncclUniqueId> SharedId(Communicator* host) {
  constexpr int kWords = sizeof(ncclUniqueId) / sizeof(float);
  ncclUniqueId id = {};
  absl::Status drawn = absl::OkStatus();
  if (host->rank() == 0) drawn = NcclStatus(ncclGetUniqueId(&id), "an id");
  std::vector<float> rows(static_cast<size_t>(host->size()) * kWords);
  std::vector<int> owners(host->size());
  for (int r = 0; r < host->size(); ++r) {
    std::memcpy(rows.data() + r * kWords, &id, sizeof(id));
    owners[r] = r;
  }
  std::vector<float> joined;  // this rank's row: the ids of all ranks
  host->GatherRows(rows, kWords, owners, &joined);
  if (!drawn.ok()) return drawn;
  std::memcpy(&id, joined.data(), sizeof(id));
  return id;
}

}  // namespace

absl::Status AgreeOn(Communicator* host, absl::Status status) {
  float failed = status.ok() ? 0 : 1;
  host->AllReduceSum(absl::MakeSpan(&failed, 1));
  if (!status.ok() || failed == 0) return status;
  return absl::AbortedError("another rank of the group failed");
}

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
