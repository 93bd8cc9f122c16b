#ifndef SPECFABRIC_MODEL_CUDA_GRAPH_CACHE_H_
#define SPECFABRIC_MODEL_CUDA_GRAPH_CACHE_H_

// Passes as CUDA graphs: what hundreds of launches enqueue is captured once for each size of pass
// and then launched as one. Owned by one rank's thread.

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
  // shared: the passes sum over several ranks, which have the same sizes and changes of places in
  // the same order.
  explicit GraphCache(bool shared = false, size_t most = 64) : shared_(shared), most_(most) {}

  // Does on the device's stream what `enqueue` enqueues there, which must be the same for all
  // passes of one size while `places` is: a number that tells apart where the memory lies which it
  // works on. The first such pass runs as it is, so that whatever is allocated at first use is; the
  // second is captured; later ones replay that. A pass that cannot be captured runs as it is, and
  // so do all after it: failure() says why. Ranks must go on alike: `agree` is given what came of
  // every capture and returns what came of all ranks'. Shared passes do not go on after a failure,
  // since NCCL may not either. Errors are enqueue's, the failure, or Internal: the graph could not
  // be launched.
  absl::Status Run(const base::cuda::Device& device, const PassSize& size, uint64_t places,
                   absl::FunctionRef<absl::Status()> enqueue,
                   absl::FunctionRef<absl::Status(absl::Status)> agree);

  // Before memory moves that graphs name.
  void Clear() { entries_.clear(); }
  // Of the first capture that failed.
  const absl::Status& failure() const { return failure_; }
  int64_t captured() const { return captured_; }
  int64_t replayed() const { return replayed_; }

 private:
  struct Entry {
    uint64_t places = 0;
    bool known = false;  // has run
    std::unique_ptr<CUgraphExec_st, DestroyGraph> graph;
    int64_t used = 0;  // by when
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
