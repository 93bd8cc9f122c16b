#ifndef SPECFABRIC_MODEL_CUDA_RANK_EXCHANGE_H_
#define SPECFABRIC_MODEL_CUDA_RANK_EXCHANGE_H_

// Exchanges among the ranks' host threads. All ranks make the same calls in the same order.

#include <cstring>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "model/parallel/communicator.h"

namespace specfabric::model::cuda {

// This rank's status, or Aborted if it is well and another rank's is not. All ranks call it, so
// that none waits in a collective for one that has failed. The well are counted: in a group that
// has ended nobody adds to what is there.
inline absl::Status AgreeOn(Communicator* host, absl::Status status) {
  float well = status.ok() ? 1 : 0;
  host->AllReduceSum(absl::MakeSpan(&well, 1));
  if (!status.ok() || well == static_cast<float>(host->size())) return status;
  return absl::AbortedError("another rank of the group failed");
}

// [ranks] Every rank's value; on their way they are rows of floats, whose bits are kept.
template <typename T>
std::vector<T> FromAllRanks(Communicator* host, const T& mine) {
  static_assert(std::is_trivial_v<T> && sizeof(T) % sizeof(float) == 0);
  constexpr int kWords = sizeof(T) / sizeof(float);
  const auto ranks = static_cast<size_t>(host->size());
  std::vector<float> rows(ranks * kWords);
  std::vector<int> owners(ranks);
  for (size_t r = 0; r < ranks; ++r) {
    std::memcpy(rows.data() + r * kWords, &mine, sizeof(T));
    owners[r] = static_cast<int>(r);
  }
  std::vector<float> joined;  // this rank's row: the values of all ranks
  host->GatherRows(rows, kWords, owners, &joined);
  std::vector<T> all(ranks);
  std::memcpy(all.data(), joined.data(), ranks * sizeof(T));
  return all;
}

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_RANK_EXCHANGE_H_
