// How CudaTransformer starts: weights, what works on this machine, and the KV cache in the memory
// that is left. Ranks go step by step together, so that none waits for one that has failed.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <future>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status.h"
#include "model/checkpoint/checkpoint_tensors.h"
#include "model/cuda/cuda_transformer.h"
#include "model/cuda/feature_checks.h"
#include "model/cuda/rank_exchange.h"
#include "model/numerics.h"
#include "spdlog/spdlog.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::Device;
using base::cuda::DeviceBuffer;

// To be raised whenever a change of the code gives other bits for the same weights on the same GPU.
constexpr uint64_t kNumericsVersion = 2;

// The first cache, for a pass of one row, where the final one follows from the memory left.
constexpr int32_t kTrialBlocks = 1;

// How often a cache that turns out not to fit is made smaller.
constexpr int kCacheAttempts = 8;

// For trials: one row, in the cache's first slot.
Batch OneRow(const ModelConfig& config) {
  Batch batch;
  if (config.states && !config.states->block) batch.states.assign(config.hidden, 0.5f);
  batch.tokens = batch.positions = batch.blocks = batch.logit_rows = {0};
  batch.sequences.push_back({.row_count = 1, .block_count = 1});
  return batch;
}

// Rank 0's, but for what each process reserves for itself.
KvSizing SharedSizing(Communicator* group, const KvSizing& mine) {
  struct Counts {
    double memory_fraction, share;
    int32_t least, most;
  };
  const Counts counts = {mine.memory_fraction, mine.share, mine.least, mine.most};
  const Counts first = FromAllRanks(group, counts)[0];
  return {.memory_fraction = first.memory_fraction,
          .share = first.share,
          .least = first.least,
          .most = first.most,
          .reserved_bytes = mine.reserved_bytes};
}

}  // namespace

CudaTransformer::CudaTransformer(ModelConfig config, const RankOptions& options,
                                 const Partition& partition, Communicator* group,
                                 std::unique_ptr<Communicator> stage)
    : config_(std::move(config)),
      options_(options),
      partition_(partition),
      rope_(MakeRopeTable(config_.rope, config_.head_dim)),
      group_(group),
      stage_(std::move(stage)),
      kept_states_(config_.hidden),
      plans_(config_),
      graphs_(/*shared=*/group->size() > 1) {}

absl::StatusOr<std::unique_ptr<CudaTransformer>> CudaTransformer::Load(const std::string& model_dir,
                                                                       const RankOptions& options,
                                                                       Communicator* communicator) {
  absl::StatusOr<ModelConfig> config = LoadDraftConfig(model_dir, options.target_dir);
  if (!config.ok()) return config.status();
  if (config->states && !options.state_layers.empty()) {
    config->states->layers = options.state_layers;
  }
  const absl::StatusOr<GroupShape> shape = ShapeOf(communicator->size(), options.pipeline_stages);
  if (!shape.ok()) return shape.status();
  if (absl::Status status = CheckShape(*config, *shape); !status.ok()) return status;
  if (absl::Status status = CheckDrafterShape(*config, *shape); !status.ok()) return status;
  if (config->head_dim > kMaxHeadDim) {
    return absl::InvalidArgumentError(
        absl::StrCat("heads of ", config->head_dim, "; allowed on GPUs: at most ", kMaxHeadDim));
  }
  absl::StatusOr<std::unique_ptr<Communicator>> stage = SplitStages(communicator, shape->stages);
  if (!stage.ok()) return stage.status();
  const Partition partition = MakePartition(*config, *shape, communicator->rank());
  std::unique_ptr<CudaTransformer> model(
      new CudaTransformer(*std::move(config), options, partition, communicator, *std::move(stage)));
  if (absl::Status status = model->LoadCheckpoint(model_dir); !status.ok()) return status;
  return model;
}

absl::Status CudaTransformer::LoadCheckpoint(const std::string& model_dir) {
  if (absl::Status opened = AgreeOn(group_, OpenDevice()); !opened.ok()) return opened;
  if (absl::Status met = MeetRanks(); !met.ok()) return met;
  if (absl::Status read = AgreeOn(group_, ReadCheckpoint(model_dir)); !read.ok()) return read;
  ShareFingerprint();
  const bool automatic = options_.kv_blocks == 0;
  if (automatic) options_.kv_blocks = kTrialBlocks;
  if (absl::Status made = AgreeOn(group_, MakeBuffers()); !made.ok()) return made;
  absl::StatusOr<FeatureState> flash =
      TryFlashAttention(automatic ? kMostKvBlocks : options_.kv_blocks);
  if (!flash.ok()) return flash.status();
  absl::StatusOr<FeatureState> graphs = TryGraphs();
  if (!graphs.ok()) return graphs.status();
  options_.peer_sums = collectives_->peer_sums().on;
  if (automatic) {
    if (absl::Status sized = SizeCache(); !sized.ok()) return sized;
  }
  fingerprint_ ^= HashNumerics();
  if (group_->rank() == 0) LogStart(*flash, *graphs);
  return absl::OkStatus();
}

void CudaTransformer::LogStart(const FeatureState& flash, const FeatureState& graphs) const {
  spdlog::info("{}", Describe(kCudaGraphs, graphs));
  spdlog::info("{}", Describe(kFlashAttention, flash));
  spdlog::info("{}", Describe(kPeerSums, collectives_->peer_sums()));
  spdlog::info("KV cache: {} tokens in {} blocks, {:.2f} GiB on each of {} GPUs", slots(),
               options_.kv_blocks,
               static_cast<double>(KvBlockBytes()) * options_.kv_blocks / (int64_t{1} << 30),
               group_->size());
}

absl::Status CudaTransformer::OpenDevice() {
  absl::StatusOr<std::unique_ptr<Device>> device = Device::Open(group_->local_rank());
  if (!device.ok()) return device.status();
  device_ = *std::move(device);
  absl::StatusOr<std::unique_ptr<MatrixProducts>> products =
      MatrixProducts::Create(device_.get(), options_.batch_invariant);
  if (!products.ok()) return products.status();
  products_ = *std::move(products);
  device_logits_.emplace(device_.get());
  return absl::OkStatus();
}

absl::Status CudaTransformer::MeetRanks() {
  collectives_.reset();
  absl::StatusOr<std::unique_ptr<Collectives>> collectives =
      Collectives::Create(group_, stage_ == nullptr ? group_ : stage_.get(), device_.get(),
                          {.batch_invariant = options_.batch_invariant,
                           .peer_sums = options_.peer_sums,
                           .join_timeout = options_.join_timeout});
  if (!collectives.ok()) return collectives.status();
  collectives_ = *std::move(collectives);
  return absl::OkStatus();
}

absl::Status CudaTransformer::ReadCheckpoint(const std::string& model_dir) {
  absl::Status read = config_.states ? ReadDrafter(model_dir) : ReadModel(model_dir);
  return read.ok() ? PrepareProducts() : read;
}

// The first rank of each process also hashes the checkpoint, for all of them, while the weights are
// on their way.
absl::Status CudaTransformer::ReadModel(const std::string& model_dir) {
  absl::StatusOr<OpenedCheckpoint> opened = OpenCheckpoint(model_dir, config_);
  if (!opened.ok()) return opened.status();
  const Checkpoint& checkpoint = opened->checkpoint;
  config_.tied_embeddings = opened->tied_embeddings;
  std::future<uint64_t> hash;
  if (group_->local_rank() == 0) {
    hash = std::async(std::launch::async, [&] { return HashModel(checkpoint, config_, rope_); });
  }
  absl::StatusOr<DeviceWeights> weights =
      LoadDeviceWeights(checkpoint, config_, partition_, options_.dtype, *device_);
  if (hash.valid()) fingerprint_ = hash.get();
  if (!weights.ok()) return weights.status();
  weights_ = *std::move(weights);
  return absl::OkStatus();
}

absl::Status CudaTransformer::ReadDrafter(const std::string& model_dir) {
  const absl::StatusOr<OpenedDrafter> opened =
      OpenDrafter(model_dir, options_.target_dir, &config_);
  if (!opened.ok()) return opened.status();
  std::future<uint64_t> hash =
      std::async(std::launch::async, [&] { return HashModel(*opened, config_, rope_); });
  absl::StatusOr<DeviceWeights> weights =
      LoadDeviceWeights(*opened, config_, partition_, options_.dtype, *device_);
  fingerprint_ = hash.get();
  if (!weights.ok()) return weights.status();
  weights_ = *std::move(weights);
  const DeviceDrafter* const parts = &*weights_.drafter;
  fuser_.emplace(&config_, options_.dtype, parts, device_.get(), products_.get());
  if (!config_.states->block) {
    joiner_.emplace(&config_, options_.dtype, &weights_, device_.get(), products_.get());
    return absl::OkStatus();
  }
  absl::StatusOr<BlockParts> block =
      BlockParts::Load(*opened, config_, options_.dtype, parts, device_.get(), products_.get());
  if (!block.ok()) return block.status();
  block_ = *std::move(block);
  return absl::OkStatus();
}

// Before there is a cache, whose memory the trials may use.
absl::Status CudaTransformer::PrepareProducts() {
  if (options_.dtype != DataType::kBFloat16) return absl::OkStatus();
  std::vector<const Matrix*> matrices;
  for (const DeviceLayer& layer : weights_.layers) {
    matrices.insert(matrices.end(), {&layer.gate_up, &layer.down, &layer.qkv, &layer.output});
  }
  if (weights_.drafter) {
    for (const Matrix* matrix : {&weights_.drafter->fuse, &weights_.drafter->projection}) {
      if (matrix->weights != nullptr) matrices.push_back(matrix);
    }
  }
  if (block_) block_->AddMatrices(&matrices);
  matrices.push_back(&weights_.head);
  return products_->Prepare(matrices, options_.trial_budget);
}

void CudaTransformer::ShareFingerprint() {
  const std::vector<int> places = FromAllRanks(group_, group_->local_rank());
  processes_ = static_cast<int>(std::count(places.begin(), places.end(), 0));
  const int first_here = group_->rank() - group_->local_rank();
  fingerprint_ = FromAllRanks(group_, fingerprint_)[first_here];
}

// At the start rather than in a step; and graphs depend on the addresses.
absl::Status CudaTransformer::MakeBuffers() {
  const int32_t logit_rows = options_.cuda_graphs ? kMaxPaddedRows : 1;
  absl::Status status = MakeCache();
  status.Update(ReserveRows(std::max(options_.max_rows, logit_rows), logit_rows));
  return status;
}

TreeAttentionConfig CudaTransformer::AttentionConfig(int32_t kv_blocks) const {
  TreeAttentionConfig config;
  config.rules.heads = partition_.heads;
  config.rules.kv_heads = partition_.kv_heads;
  config.rules.head_dim = config_.head_dim;
  config.rules.blocks = kv_blocks;
  config.rules.block_size = options_.block_size;
  config.rules.batch_invariant = options_.batch_invariant;
  config.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  return config;
}

// kv_blocks: what the cache may come to have.
absl::StatusOr<FeatureState> CudaTransformer::TryFlashAttention(int32_t kv_blocks) {
  if (!options_.flash_attention) return FeatureState{.on = false, .why = kDisabled};
  absl::Status works;
  if (options_.dtype != DataType::kBFloat16) {
    works = absl::InvalidArgumentError(
        absl::StrCat("its kernels do not take ", Name(options_.dtype), "; allowed: bfloat16"));
  } else if (plans_.limits_all_layers()) {
    works = absl::InvalidArgumentError(
        "all layers have a window or causal blocks, which its kernels do not take");
  } else {
    works = CheckFlashAttention(*device_, AttentionConfig(kv_blocks));
  }
  if (works.ok()) works = MakeAttention(kv_blocks);
  absl::StatusOr<FeatureState> state = AgreeOnFeature(group_, works);
  if (!state.ok()) return state;
  options_.flash_attention = state->on;
  if (!state->on) flash_.reset();
  return state;
}

absl::Status CudaTransformer::MakeAttention(int32_t kv_blocks) {
  absl::StatusOr<FlashAttention> made = FlashAttention::Create(AttentionConfig(kv_blocks));
  if (!made.ok()) return made.status();
  flash_ = *std::move(made);
  // It multiplies slots that a row does not see by 0, so they must be finite.
  absl::Status status = device_->Clear(cache_.As<void>(), cache_.bytes());
  if (!options_.cuda_graphs) return status;
  // Its memory for passes of each size that is captured, before the rest is given to the cache.
  const Batch batch = OneRow(config_);
  for (int32_t rows = 1; rows <= kMaxPaddedRows; rows = PaddedSize({rows + 1, 1}).rows) {
    status.Update(flash_->PlanPadded(*device_, batch, rows));
    if (rows == kMaxPaddedRows) break;
  }
  status.Update(device_->Finish());
  return status;
}

absl::StatusOr<FeatureState> CudaTransformer::TryGraphs() {
  if (!options_.cuda_graphs) return FeatureState{.on = false, .why = kDisabled};
  // On each rank by itself first: NCCL does not forgive a capture that fails.
  absl::StatusOr<FeatureState> state = AgreeOnFeature(group_, CheckGraphs(*device_));
  if (!state.ok()) return state;
  if (state->on) {
    absl::Status captured;
    if (absl::Status passes = CapturePass(&captured); !passes.ok()) return passes;
    state = AgreeOnFeature(group_, captured);
    if (!state.ok()) return state;
    // What NCCL was told in the capture is of no use any more.
    if (!state->on && group_->size() > 1) {
      graphs_.Clear();
      if (absl::Status met = MeetRanks(); !met.ok()) return met;
      const auto reserved = static_cast<int64_t>(projected_.bytes() / sizeof(float));
      if (absl::Status made = AgreeOn(group_, collectives_->Reserve(reserved)); !made.ok()) {
        return made;
      }
    }
  }
  options_.cuda_graphs = state->on;
  return state;
}

// Runs passes of one row, which write to a slot that is not used yet: as it is, captured with
// another token, and replayed with the first, whose logits must be the same (without batch
// invariance, a replay may sum in another order). *captured: what is wrong with graphs. The result
// is the status of the passes themselves.
absl::Status CudaTransformer::CapturePass(absl::Status* captured) {
  Batch batch = OneRow(config_);
  // Steps that can fail on a single rank come before any collective.
  absl::Status prepared = PlanAttention(batch);
  if (prepared.ok()) prepared = CopyPadded(batch, PaddedSize({1, 1})).status();
  prepared.Update(device_->Finish());
  prepared = AgreeOn(group_, prepared);
  if (!prepared.ok()) return prepared;
  std::vector<float> first, last;
  for (base::TokenId token : {1, 0, 1}) {
    batch.tokens = {token % config_.vocabulary};
    absl::StatusOr<LogitShard> logits = Forward(batch);
    *captured = graphs_.failure();
    if (!captured->ok()) return absl::OkStatus();
    if (!logits.ok()) return logits.status();
    if (absl::Status fetched = FetchRows(&*logits); !fetched.ok()) return fetched;
    const absl::Span<const float> row = logits->row(0);
    if (first.empty()) first.assign(row.begin(), row.end());
    last.assign(row.begin(), row.end());
  }
  if (graphs_.replayed() == 0) {
    *captured = absl::InternalError("its passes were not captured");
  } else if (options_.batch_invariant &&
             std::memcmp(first.data(), last.data(), first.size() * sizeof(float)) != 0) {
    *captured = absl::InternalError("a captured pass has other logits than the pass itself");
  }
  return absl::OkStatus();
}

uint64_t CudaTransformer::HashNumerics() const {
  uint64_t hash =
      HashKernels(absl::StrCat("cuda ", device_->name()), kNumericsVersion, options_.dtype);
  hash = base::Mix64(hash ^ static_cast<uint64_t>(partition_.ranks));
  // The shape of the head's product depends on the number of stages.
  hash = base::Mix64(hash ^ static_cast<uint64_t>(partition_.stages));
  hash = base::Mix64(hash ^ static_cast<uint64_t>(options_.flash_attention));
  if (options_.batch_invariant) return hash;
  std::random_device random;
  const uint64_t drawn = uint64_t{random()} << 32 | random();
  return base::Mix64(hash ^ FromAllRanks(group_, drawn)[0]);
}

int64_t CudaTransformer::KvBlockBytes() const {
  return int64_t{2} * partition_.layers * options_.block_size * partition_.kv_heads *
         config_.head_dim * static_cast<int64_t>(element_bytes());
}

absl::Status CudaTransformer::MakeCache() {
  cache_ = DeviceBuffer();  // both may not fit at once
  absl::StatusOr<DeviceBuffer> cache =
      DeviceBuffer::Create(static_cast<size_t>(KvBlockBytes()) * options_.kv_blocks);
  if (!cache.ok()) {
    return absl::Status(cache.status().code(), absl::StrCat("KV cache of ", options_.kv_blocks,
                                                            " blocks: ", cache.status().message()));
  }
  cache_ = *std::move(cache);
  return absl::OkStatus();
}

// On this rank, once everything else is in its memory, a captured graph included.
absl::StatusOr<int32_t> CudaTransformer::BlocksThatFit(const KvSizing& sizing) const {
  absl::StatusOr<Device::Memory> memory = device_->ReadMemory();
  if (!memory.ok()) return memory.status();
  return KvBlocksFor(sizing, {memory->free, memory->total}, KvBlockBytes());
}

// Replaces the trial's cache by one of as many blocks as fit on every rank.
absl::Status CudaTransformer::SizeCache() {
  const KvSizing sizing = SharedSizing(group_, options_.kv_sizing);
  const absl::StatusOr<int32_t> mine = BlocksThatFit(sizing);
  graphs_.Clear();  // they use the trial's
  if (absl::Status agreed = AgreeOn(group_, mine.status()); !agreed.ok()) return agreed;
  const std::vector<int32_t> all = FromAllRanks<int32_t>(group_, *mine);
  options_.kv_blocks = *std::min_element(all.begin(), all.end());
  for (int attempt = 1;; ++attempt) {
    absl::Status made = MakeCache();
    if (made.ok() && flash_.has_value()) made = MakeAttention(options_.kv_blocks);
    const absl::Status agreed = AgreeOn(group_, made);
    if (agreed.ok()) return agreed;
    const int32_t fewer = options_.kv_blocks / 4 * 3;
    if (attempt == kCacheAttempts || fewer < sizing.least) return agreed;
    if (!made.ok()) {
      spdlog::warn("GPU {}: {}; trying {} blocks", device_->ordinal(), base::Message(made), fewer);
    }
    options_.kv_blocks = fewer;
  }
}

}  // namespace specfabric::model::cuda
