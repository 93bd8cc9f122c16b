#ifndef SPECFABRIC_MODEL_RANK_MODEL_H_
#define SPECFABRIC_MODEL_RANK_MODEL_H_

// One rank's shard of a transformer with its shard of the paged KV cache. No torch in this header.
// Owned and called by one thread. The ranks of a group call Forward with the same batches in the
// same order, since the pass contains collectives.

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "model/batch.h"
#include "model/checkpoint/config.h"
#include "model/device_logits.h"
#include "model/parallel/communicator.h"
#include "model/parallel/partition.h"

namespace specfabric::base::cuda {
class Device;
}  // namespace specfabric::base::cuda

namespace specfabric::model {

enum class DeviceKind : uint8_t { kCpu, kCuda };
absl::StatusOr<DeviceKind> ParseDeviceKind(std::string_view name);  // "cpu", "cuda"

struct RankOptions {
  // CUDA: GPU number r, of those the process sees, for the r-th of the process's ranks.
  DeviceKind device = DeviceKind::kCpu;
  DataType dtype = DataType::kBFloat16;  // of weights, activations between layers, and KV
  int32_t kv_blocks = 0;
  int32_t block_size = 16;
  int32_t max_rows = 0;  // of a pass: GPUs' memory for so many is taken at the start
  int32_t threads = 1;   // threads inside one rank; of CPUs
  // Runs of layers on ranks of their own, which must divide the group's ranks; and the fewest rows
  // that they work on at once, 0: what pays on that device.
  int32_t pipeline_stages = 1;
  int32_t micro_batch_rows = 0;
  // A row's logits do not depend on the other rows of the batch. The packed kernels hold this
  // always; the reference path and GPUs take a fixed number of rows at once for it.
  bool batch_invariant = true;
  // FlashInfer's kernels for attention, of bfloat16 and heads of 64 and 128: see
  // cuda/tree_attention.h
  bool flash_attention = false;
  bool cuda_graphs = false;  // passes of few rows are captured and replayed: see cuda/graph_cache.h
  bool peer_sums = false;    // small sums among GPUs that reach each other: see cuda/peer_sum.h
  // How long GPUs' ranks may take to find each other.
  base::Nanos join_timeout = 120 * base::kSecond;
  bool reference = false;  // libtorch's plain operations instead of the packed kernels; of CPUs

  // A token's logits are the same bits alone, in a batch, and on a path of a tree, which
  // FlashInfer's kernels do not hold: siblings lie between the slots there.
  bool token_exact() const { return batch_invariant && !flash_attention; }
};

// This rank's part of the logits: float32, [rows][width], of ids first .. first + width. Valid
// until the rank's next Forward. On a device there is no data until it is fetched.
struct LogitShard {
  const float* data = nullptr;
  int32_t rows = 0;
  int32_t width = 0;
  base::TokenId first = 0;
  DeviceLogits* device = nullptr;
  absl::Span<const float> row(int r) const {
    return {data + static_cast<size_t>(r) * width, static_cast<size_t>(width)};
  }
};

// Brings all rows to the host where they are on a device.
inline absl::Status FetchRows(LogitShard* shard) {
  if (shard->data != nullptr || shard->device == nullptr) return absl::OkStatus();
  std::vector<int32_t> all(shard->rows);
  std::iota(all.begin(), all.end(), 0);
  absl::StatusOr<const float*> rows = shard->device->Fetch(all);
  if (!rows.ok()) return rows.status();
  shard->data = *rows;
  return absl::OkStatus();
}

class RankModel {
 public:
  // Reads this rank's shards from <model_dir>/model*.safetensors. `communicator` must outlive the
  // model. InvalidArgument: heads or KV heads do not divide by the number of ranks (the message
  // says which numbers of ranks do), tensors of other shapes than config.json says, truncated
  // files. NotFound: missing files or tensors. FailedPrecondition: no such GPU, or a build without
  // kernels for GPUs.
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
  // kernels, for the reference path of ranks and threads too, on which its bits depend, and for
  // GPUs of ranks and the GPU's name; a GPU that is not batch-invariant is like no other.
  virtual uint64_t NumericsFingerprint() const = 0;
  // The GPU that has this rank's logits, for what is done with them there; null: on CPUs. It lives
  // as long as the model, and is used by the rank's thread.
  virtual const base::cuda::Device* device() const { return nullptr; }
  // Bytes of KV cache a block takes on this rank.
  virtual int64_t KvBlockBytes() const = 0;
};

// The ranks of this rank's pipeline stage, of `stages` in the group; null: the group is but one.
// InvalidArgument: they are in several processes.
absl::StatusOr<std::unique_ptr<Communicator>> SplitStages(Communicator* group, int stages);

// OK if a model of this configuration can be split so; else InvalidArgument naming the numbers that
// can. Checked once before any rank loads.
absl::Status CheckShape(const ModelConfig& config, const GroupShape& shape);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_RANK_MODEL_H_
