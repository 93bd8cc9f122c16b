#include "model/cuda/collectives.h"

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "model/cuda/feature_checks.h"
#include "model/cuda/layers.h"
#include "model/cuda/rank_exchange.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::Device;

absl::Status NcclStatus(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("NCCL, ", what, ": ", ncclGetErrorString(result)));
}

// The id drawn by rank `first` of those that join. Called by all ranks of the group, each for its
// own communicator.
absl::StatusOr<ncclUniqueId> SharedId(Communicator* group, int first) {
  ncclUniqueId id = {};
  absl::Status drawn = absl::OkStatus();
  if (group->rank() == first) drawn = NcclStatus(ncclGetUniqueId(&id), "an id");
  id = FromAllRanks(group, id)[first];
  drawn = AgreeOn(group, drawn);
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

// Likewise, for a call that all ranks of the group make at once: they exchange their states, so
// that the others do not wait for a rank that failed, and all return the same result.
absl::Status SettleTogether(Communicator* group, ncclResult_t result, ncclComm_t communicator,
                            base::Nanos deadline, const char* what) {
  constexpr base::Nanos kTurn = 500 * base::kMillisecond;
  for (;;) {
    const base::Nanos now = base::Now();
    absl::Status status = Settle(result, communicator, std::min(deadline, now + kTurn), what);
    const bool waits = absl::IsDeadlineExceeded(status);
    result = waits ? ncclInProgress : ncclSuccess;
    enum { kHere, kDone, kFailed, kLate, kVotes };
    float votes[kVotes] = {};
    votes[kHere] = 1;
    votes[kDone] = status.ok() ? 1 : 0;
    votes[kFailed] = !status.ok() && !waits ? 1 : 0;
    votes[kLate] = waits && base::Now() >= deadline ? 1 : 0;
    const bool failed = votes[kFailed] != 0;
    group->AllReduceSum(absl::MakeSpan(votes));
    const auto all = static_cast<float>(group->size());
    if (failed) return status;
    // In a group that has ended no rank contributes any more.
    if (votes[kFailed] != 0 || votes[kHere] != all) {
      return absl::AbortedError("another rank of the group failed");
    }
    if (votes[kDone] == all) return absl::OkStatus();
    if (votes[kLate] != 0) {
      return absl::DeadlineExceededError(absl::StrCat("NCCL, ", what, ": it takes too long"));
    }
  }
}

// StepWatchdog limits the time of a step.
absl::Status Enqueued(ncclResult_t result, ncclComm_t communicator, const char* what) {
  return Settle(result, communicator, std::numeric_limits<base::Nanos>::max(), what);
}

}  // namespace

// Ranks first .. first + ranks of the group, this one among them.
absl::Status Collectives::Meet(Communicator* group, int first, int ranks,
                               ncclComm** communicator) const {
  absl::StatusOr<ncclUniqueId> id = SharedId(group, first);
  if (!id.ok()) return id.status();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const base::Nanos deadline = base::Now() + options_.join_timeout;
  const ncclResult_t begun =
      ncclCommInitRankConfig(communicator, ranks, *id, group->rank() - first, &config);
  return SettleTogether(group, begun, *communicator, deadline, "joining the ranks");
}

absl::StatusOr<std::unique_ptr<Collectives>> Collectives::Create(
    Communicator* group, Communicator* stage, const Device* device,
    const CollectivesOptions& options) {
  const int size = group->size(), ranks = stage->size();
  std::unique_ptr<Collectives> made(new Collectives(device, group->rank(), size, ranks, options));
  absl::Status met;
  if (ranks < size) met = made->Meet(group, 0, size, &made->group_communicator_);
  if (met.ok() && ranks > 1) {
    met = made->Meet(group, group->rank() - stage->rank(), ranks, &made->communicator_);
  }
  if (!met.ok()) return met;
  if (absl::Status peers = made->MakePeerSums(group, stage); !peers.ok()) return peers;
  return made;
}

// Without them where they do not work. Each stage tries on its own; then all continue alike.
absl::Status Collectives::MakePeerSums(Communicator* group, Communicator* stage) {
  const bool spans_processes = group->size() > 1 && SpansProcesses(group);
  if (ranks_ == 1) {
    peer_sums_.why = "no sums are over several GPUs";
  } else if (spans_processes) {
    peer_sums_.why = "the ranks are in several processes";
  } else if (!options_.peer_sums) {
    peer_sums_.why = kDisabled;
  } else {
    absl::StatusOr<std::unique_ptr<PeerSum>> peers = PeerSum::Create(stage, device_);
    absl::StatusOr<FeatureState> state = AgreeOnFeature(group, peers.status());
    if (!state.ok()) return state.status();
    peer_sums_ = *std::move(state);
    if (peer_sums_.on) peers_ = *std::move(peers);
  }
  return absl::OkStatus();
}

Collectives::~Collectives() {
  // In a healthy group nothing is in progress; in a failed one ncclCommDestroy might wait for ranks
  // that are gone.
  for (ncclComm* communicator : {communicator_, group_communicator_}) {
    if (communicator != nullptr) ncclCommAbort(communicator);
  }
}

absl::Status Collectives::Reserve(int64_t count) {
  const bool gathers = ranks_ > 1 && options_.batch_invariant;
  return gathers ? parts_.Reserve(ranks_ * static_cast<size_t>(count) * sizeof(float))
                 : absl::OkStatus();
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
    // Enqueued work may still use the smaller buffer.
    if (absl::Status done = device_->Finish(); !done.ok()) return done;
    if (absl::Status reserved = parts_.Reserve(bytes); !reserved.ok()) return reserved;
  }
  absl::Status status = Enqueued(
      ncclAllGather(data, parts_.As<float>(), size, ncclFloat32, communicator_, device_->stream()),
      communicator_, "a gathering");
  status.Update(EnqueueSumParts(parts_.As<float>(), ranks_, count, data, device_->stream()));
  return status;
}

absl::Status Collectives::SumAddAndNorm(NormArgs norm, float* added) {
  norm.added = added;
  if (ranks_ > 1 && peers_ != nullptr && peers_->TakesNorm(norm.rows, norm.hidden)) {
    return peers_->SumAndNorm(norm, device_->stream());
  }
  absl::Status status = Sum(added, int64_t{norm.rows} * norm.hidden);
  status.Update(EnqueueAddAndNorm(norm, device_->stream()));
  return status;
}

// Adding zeros changes no bit, whatever the order of the sum.
absl::Status Collectives::Join(float* data, int64_t count) {
  if (group_communicator_ == nullptr) return Sum(data, count);
  return Enqueued(ncclAllReduce(data, data, static_cast<size_t>(count), ncclFloat32, ncclSum,
                                group_communicator_, device_->stream()),
                  group_communicator_, "a sum over all stages");
}

absl::Status Collectives::HandOver(const float* out, int64_t out_count, float* in,
                                   int64_t in_count) {
  if (out_count == 0 && in_count == 0) return absl::OkStatus();
  // In one NCCL group, or each rank would wait for the other's call.
  ncclResult_t result = ncclGroupStart();
  if (result == ncclSuccess && out_count > 0) {
    result = ncclSend(out, static_cast<size_t>(out_count), ncclFloat32, rank_ + ranks_,
                      group_communicator_, device_->stream());
  }
  if (in_count > 0 && (result == ncclSuccess || result == ncclInProgress)) {
    result = ncclRecv(in, static_cast<size_t>(in_count), ncclFloat32, rank_ - ranks_,
                      group_communicator_, device_->stream());
  }
  const ncclResult_t ended = ncclGroupEnd();
  if (result == ncclSuccess || result == ncclInProgress) result = ended;
  return Enqueued(result, group_communicator_, "a hand-over to the next stage");
}

absl::Status Collectives::FromLastStage(float* data, int64_t count) {
  if (group_communicator_ == nullptr) return absl::OkStatus();
  return Enqueued(ncclBroadcast(data, data, static_cast<size_t>(count), ncclFloat32,
                                group_ranks_ - 1, group_communicator_, device_->stream()),
                  group_communicator_, "the last stage's rows");
}

}  // namespace specfabric::model::cuda
