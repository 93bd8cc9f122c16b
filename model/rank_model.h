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
#include "model/hidden_states.h"
#include "model/kv_size.h"
#include "model/parallel/communicator.h"
#include "model/parallel/partition.h"

namespace specfabric::base::cuda {
class Device;
}  // namespace specfabric::base::cuda

namespace specfabric::model {

enum class DeviceKind : uint8_t { kCpu, kCuda };
absl::StatusOr<DeviceKind> ParseDeviceKind(std::string_view name);  // "cpu", "cuda"

struct RankOptions {
  // kCuda: the r-th rank of a process takes GPU r of those that the process sees.
  DeviceKind device = DeviceKind::kCpu;
  DataType dtype = DataType::kBFloat16;  // of weights, activations between layers, and KV
  int32_t kv_blocks = 0;                 // 0, on GPUs alone: as many as kv_sizing says
  int32_t block_size = 16;
  KvSizing kv_sizing = {};  // in a group rank 0's counts, and the smallest result of all ranks
  int32_t max_rows = 0;     // of a pass; a GPU allocates memory for so many at the start
  int32_t threads = 1;      // inside one rank; CPUs only
  // pipeline_stages must divide the group's number of ranks. micro_batch_rows: the fewest rows of a
  // micro-batch; 0: a default for the device.
  int32_t pipeline_stages = 1;
  int32_t micro_batch_rows = 0;
  // A token's logits have the same bits alone, in a batch, and on a path of a tree. This always
  // holds for the CPUs' packed kernels; the reference path processes a fixed number of rows at a
  // time to achieve it, and GPUs leave out kernels that are not so.
  bool batch_invariant = true;
  // Features of GPUs (features.h) that may be used: each is if it works on all ranks.
  bool flash_attention = false;  // on tensor cores: see cuda/flash_attention.h
  bool cuda_graphs = false;      // capture and replay passes of few rows: see cuda/graph_cache.h
  bool peer_sums = false;        // small all-reduces by peer access: see cuda/peer_sum.h
  // How long ranks on GPUs may take to join their collectives.
  base::Nanos join_timeout = 120 * base::kSecond;
  // How long a GPU may try kernels at the start (cuda/linear.h). 0: rules of thumb.
  base::Nanos trial_budget = 3 * base::kSecond;
  bool reference = false;  // libtorch instead of the packed kernels; CPUs only
  // Of a drafter that reads its target's hidden states: the target's checkpoint folder, whose
  // config.json says what the drafter's leaves out, and whose embedding or head stands in for one
  // that the drafter does not have. Not needed where nothing is left out. Other models: empty.
  std::string target_dir = {};
  // Instead of the boundaries that such a drafter's config.json names; empty: those.
  std::vector<int32_t> state_layers = {};
};

// This rank's part of the logits: float32, [rows][width], of ids first .. first + width. Valid
// until the rank's next Forward. If `device` is set, `data` is null until the rows are fetched.
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

// Copies all rows to the host if they are on a device.
inline absl::Status FetchRows(LogitShard* shard) {
  if (shard->data != nullptr || shard->device == nullptr) return absl::OkStatus();
  std::vector<int32_t> all(shard->rows);
  std::iota(all.begin(), all.end(), 0);
  absl::StatusOr<const float*> rows = shard->device->Fetch(all);
  if (!rows.ok()) return rows.status();
  shard->data = *rows;
  return absl::OkStatus();
}

// A token to be drafted in a block whose drafter has a sequential head (BlockDrafter::sequential).
struct BlockNode {
  int32_t row = 0;           // of the logits of the last Forward
  base::TokenId before = 0;  // the token before it: the anchor, or a drafted one
};

class RankModel {
 public:
  // Reads this rank's shards from <model_dir>/model*.safetensors. `communicator` must outlive the
  // model. InvalidArgument: heads or KV heads do not divide by the number of ranks (the message
  // says which numbers of ranks do), tensors of other shapes than config.json says, truncated
  // files. NotFound: missing files or tensors. FailedPrecondition: no such GPU, or a build without
  // kernels for GPUs. ResourceExhausted: weights or KV cache do not fit.
  static absl::StatusOr<std::unique_ptr<RankModel>> Load(const std::string& model_dir,
                                                         const RankOptions& options,
                                                         Communicator* communicator);
  virtual ~RankModel() = default;

  virtual const ModelConfig& config() const = 0;
  // Those of Load, with what loading has found out: kv_blocks is set, and features that do not work
  // here are off. The same on all ranks of a group.
  virtual const RankOptions& options() const = 0;
  // Writes KV for all rows and returns the logits of batch.logit_rows, in their order.
  virtual absl::StatusOr<LogitShard> Forward(const Batch& batch) = 0;
  // Moves in order; both slots must be of this cache.
  virtual void MoveKv(absl::Span<const KvMove> moves) = 0;
  // Two processes with equal fingerprints compute logits with equal bits. A hash of weights, dtype
  // and kernels; for the reference path also of the numbers of ranks and threads, for GPUs also of
  // the number of ranks and the GPU's name; unique for a GPU that is not batch-invariant.
  virtual uint64_t NumericsFingerprint() const = 0;
  // The GPU that has this rank's logits, so that verification and drawing can run there; null on
  // CPUs. It lives as long as the model; used by the rank's thread.
  virtual const base::cuda::Device* device() const { return nullptr; }
  // The size in bytes of a KV cache block on this rank.
  virtual int64_t KvBlockBytes() const = 0;

  // Of a target whose drafters read its hidden states: from now on Forward keeps, of every row, the
  // residual streams at these boundaries (StateDrafter::layers); empty: none, which costs nothing.
  // All ranks of a group keep the same. InvalidArgument: a boundary that the model does not have.
  // Unimplemented: several pipeline stages. ResourceExhausted: a GPU has no memory for them;
  // nothing is kept then.
  virtual absl::Status KeepStates(const std::vector<int32_t>& boundaries) {
    if (boundaries.empty()) return absl::OkStatus();
    return absl::UnimplementedError("this model does not keep hidden states");
  }
  // Copies some of what the last Forward kept, rounded to bfloat16, for all of `copies` at once: a
  // GPU is waited for once. It has the same bits on all ranks. Before the next Forward or
  // KeepStates. ResourceExhausted or Internal: the device failed.
  virtual absl::Status CopyStates(absl::Span<const StateCopy> /*copies*/) {
    return absl::FailedPreconditionError("this model does not keep hidden states");
  }
  // Of a float32 model on CPUs all of it, as it was: [rows][boundaries][hidden]. Empty of others,
  // which keep bfloat16, and if nothing is kept. Valid until the next Forward or KeepStates.
  virtual absl::Span<const float> states() const { return {}; }

  // Of a drafter that reads its target's hidden states (ModelConfig::states): turns those of `rows`
  // positions, [rows][layers][target_hidden], into what Batch::states takes, [rows][hidden].
  // InvalidArgument: another size. FailedPrecondition: any other model.
  virtual absl::Status FuseStates(absl::Span<const float> /*states*/, int /*rows*/,
                                  float* /*fused*/) {
    return absl::FailedPreconditionError("this model does not read a target's hidden states");
  }
  // The same of states as a target sends them, in bfloat16, that lie in the memory of device().
  // False: some are not finite.
  virtual absl::StatusOr<bool> FuseDeviceStates(absl::Span<const uint8_t> /*states*/, int /*rows*/,
                                                float* /*fused*/) {
    return absl::FailedPreconditionError("this model does not read hidden states of a device");
  }
  // After Forward of an EAGLE-3 or MTP drafter, [logit rows][hidden]: the state that each row hands
  // to the rows of tokens drafted after it. After ContinueBlock, [nodes][markov_rank] if the head
  // is recurrent. Valid until the next Forward or ContinueBlock.
  virtual absl::Span<const float> next_states() const { return {}; }

  // Of a block drafter (StateDrafter::block). Writes keys and values of committed positions, which
  // are made of batch.states; the tokens do not count. There are no logits.
  // FailedPrecondition: any other model.
  virtual absl::Status WriteContext(const Batch& /*batch*/) {
    return absl::FailedPreconditionError("this model does not draft blocks");
  }
  // Of a block drafter with a sequential head, after the Forward of the block's rows: the logits of
  // nodes, corrected for the token before each. states: what next_states() gave for the node of
  // that token, and zeros for the anchor, [nodes][markov_rank] if the head is recurrent, else
  // empty. FailedPrecondition: any other model.
  virtual absl::StatusOr<LogitShard> ContinueBlock(absl::Span<const BlockNode> /*nodes*/,
                                                   absl::Span<const float> /*states*/) {
    return absl::FailedPreconditionError("this model has no sequential head");
  }
  // After ContinueBlock, [nodes]: how likely the likeliest token of each node is accepted, if that
  // before it is. Empty if the drafter does not say it.
  virtual absl::Span<const float> confidences() const { return {}; }
};

// A communicator of the ranks of this rank's pipeline stage, of `stages` in the group; null if the
// group is a single stage. InvalidArgument: the ranks are in several processes.
absl::StatusOr<std::unique_ptr<Communicator>> SplitStages(Communicator* group, int stages);

// OK if a model of this configuration can be split into this shape; else InvalidArgument with the
// numbers that are possible. Checked once before any rank loads.
absl::Status CheckShape(const ModelConfig& config, const GroupShape& shape);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_RANK_MODEL_H_
