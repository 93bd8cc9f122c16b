#ifndef SPECFABRIC_MODEL_CUDA_GRAPH_CACHE_H_
#define SPECFABRIC_MODEL_CUDA_GRAPH_CACHE_H_

// CUDA graphs of passes: hundreds of launches are captured once for each size of pass and then
// launched as one. Owned by one rank's thread.

#include <cstdint>
#include <map>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/cuda/device.h"
#include "model/cuda/pass_inputs.h"

struct CUgraphExec_st;

namespace specfabric::model::cuda {

struct DestroyGraph {
  void operator()(CUgraphExec_st* graph) const;
};

class GraphCache {
 public:
  // shared: passes contain collectives over several ranks, which run the same sizes and the same
  // changes of addresses in the same order.
  explicit GraphCache(bool shared = false, size_t most = 64) : shared_(shared), most_(most) {}

  // Runs the work of `enqueue` on the device's stream. That work must be the same for all passes of
  // one size as long as `places`, a number that identifies the addresses it uses, is the same. The
  // first such pass runs without a graph, so that first-time allocations happen; the second is
  // captured; later ones replay the graph. After a pass that cannot be captured, it and all later
  // ones run without graphs; failure() says why. All ranks must continue alike: `agree` takes the
  // status of this rank's capture and returns that of all ranks. Shared passes end after a failure,
  // since NCCL may not be usable any more. Errors are those of `enqueue`, the failure, or Internal:
  // the graph could not be launched.
  absl::Status Run(const base::cuda::Device& device, const PassSize& size, uint64_t places,
                   absl::FunctionRef<absl::Status()> enqueue,
                   absl::FunctionRef<absl::Status(absl::Status)> agree);

  // To be called before memory that graphs use is reallocated.
  void Clear() { entries_.clear(); }
  // The status of the first capture that failed; OK if none did.
  const absl::Status& failure() const { return failure_; }
  int64_t captured() const { return captured_; }
  int64_t replayed() const { return replayed_; }

 private:
  struct Entry {
    uint64_t places = 0;
    bool known = false;  // has run
    std::unique_ptr<CUgraphExec_st, DestroyGraph> graph;
    int64_t used = 0;  // the order of use
  };
  absl::Status Capture(const base::cuda::Device& device, absl::FunctionRef<absl::Status()> enqueue,
                       Entry* entry) const;
  void MakeRoom();

  const bool shared_;
  const size_t most_;
  std::map<PassSize, Entry> entries_;
  absl::Status failure_;
  int64_t passes_ = 0, captured_ = 0, replayed_ = 0;
};

}  // namespace specfabric::model::cuda

#endif  // SPECFABRIC_MODEL_CUDA_GRAPH_CACHE_H_
