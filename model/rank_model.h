#ifndef SPECFABRIC_MODEL_RANK_MODEL_H_
#define SPECFABRIC_MODEL_RANK_MODEL_H_

// One rank's shard of a transformer with its shard of the paged KV cache. No torch in this header.
// Owned and called by one thread. The ranks of a group call Forward with the same batches in the
// same order, since the pass contains collectives.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/batch.h"
#include "model/communicator.h"
#include "model/config.h"

namespace specfabric::model {

struct RankOptions {
  DataType dtype = DataType::kBFloat16;  // of weights, activations between layers, and KV
  int32_t kv_blocks = 0;
  int32_t block_size = 16;
  int32_t threads = 1;  // threads inside one rank
  // A row's logits do not depend on the other rows of the batch. The packed kernels hold this
  // always; the reference path pads rows in float32 for it.
  bool batch_invariant = true;
  bool reference = false;  // libtorch's plain operations instead of the packed kernels
};

// This rank's part of the logits: float32, [rows][width], of ids first .. first + width. Valid
// until the rank's next Forward.
struct LogitShard {
  const float* data = nullptr;
  int32_t rows = 0;
  int32_t width = 0;
  base::TokenId first = 0;
  absl::Span<const float> row(int r) const {
    return {data + static_cast<size_t>(r) * width, static_cast<size_t>(width)};
  }
};

class RankModel {
 public:
  // Reads this rank's shards from <model_dir>/model*.safetensors. `communicator` must outlive the
  // model. InvalidArgument: heads or KV heads do not divide by the number of ranks (the message
  // says which numbers of ranks do), tensors of other shapes than config.json says, truncated
  // files. NotFound: missing files or tensors.
  static absl::StatusOr<std::unique_ptr<RankModel>> Load(const std::string& model_dir,
                                                         const RankOptions& options,
                                                         Communicator* communicator);
  virtual ~RankModel() = default;

  virtual const ModelConfig& config() const = 0;
  // Writes KV for all rows and returns the logits of batch.logit_rows, in their order.
  virtual absl::StatusOr<LogitShard> Forward(const Batch& batch) = 0;
  // In order; both slots must be of this cache.
  virtual void MoveKv(absl::Span<const KvMove> moves) = 0;
  // Equal on two processes only if their logits have equal bits: a hash of weights, dtype and
  // kernels, and, for the reference path alone, of ranks and threads, on which its bits depend.
  virtual uint64_t NumericsFingerprint() const = 0;
  // Bytes of KV cache a block takes on this rank.
  virtual int64_t KvBlockBytes() const = 0;
};

// OK if a model of this configuration can be split over `ranks`; else InvalidArgument naming the
// numbers that can. Checked once before any rank loads.
absl::Status CheckTensorParallel(const ModelConfig& config, int ranks);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_RANK_MODEL_H_
