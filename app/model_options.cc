#include "app/model_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "app/flag_checks.h"
#include "app/flags.h"
#include "model/checkpoint/checkpoint_tensors.h"
#include "model/checkpoint/config.h"
#include "spdlog/spdlog.h"
#include "transport/address.h"

namespace specfabric::app {

namespace {

constexpr int64_t kDefaultKvBytes = int64_t{1} << 30;

// What a draft takes of the memory that is left on its GPU, which it may share with a target that
// starts later and can make more of it: a session that a draft has no room for costs a prefill.
constexpr double kDraftKvShare = 0.2;

// For a whole context, and some for the draft tokens past its end.
int32_t BlocksPerSequence(int context) {
  return (context + FLAGS_block_size - 1) / FLAGS_block_size + 4;
}

// On CPUs: blocks for `sequences` full contexts, but no more than about 1 GiB of KV.
int32_t DefaultKvBlocks(const model::ModelConfig& config, model::DataType dtype, int context,
                        int sequences) {
  const int64_t token_bytes =
      int64_t{2} * base::Bytes(dtype) * config.layers * config.kv_heads * config.head_dim;
  const int64_t per_sequence = BlocksPerSequence(context);
  const int64_t affordable = kDefaultKvBytes / (token_bytes * FLAGS_block_size);
  return static_cast<int32_t>(
      std::max(std::min(per_sequence * sequences, affordable), per_sequence));
}

// The service checks this too; here it becomes an error of the same form as that of a bad flag.
absl::StatusOr<int32_t> ServedContext(const std::string& model_dir,
                                      const model::ModelConfig& config) {
  auto context = model::ServedContext(config, FLAGS_max_context);
  if (context.ok()) return context;
  return absl::Status(context.status().code(),
                      absl::StrCat(model_dir, "/config.json: ", context.status().message()));
}

}  // namespace

int LogContext(const std::string& model_dir, const model::ModelConfig& config) {
  if (FLAGS_max_context > config.context) {
    spdlog::warn("--max_context={} is more than the {} tokens that {} allows, which are served",
                 FLAGS_max_context, config.context, model_dir);
  } else if (FLAGS_max_context > 0 && FLAGS_max_context < config.context) {
    spdlog::info("--max_context={} cuts the context of {} tokens that {} allows", FLAGS_max_context,
                 config.context, model_dir);
  }
  // Not ServedContext, which fails for a model that cannot be served: its targets refuse it.
  return FLAGS_max_context == 0 ? config.context : std::min(FLAGS_max_context, config.context);
}

absl::Status CheckModelFiles(const std::string& model_dir, const std::string& target_dir) {
  auto config = model::LoadDraftConfig(model_dir, target_dir);
  if (!config.ok()) return config.status();
  return model::OpenCheckpoint(model_dir, *config).status();
}

absl::Status LogModel(const std::string& model_dir, const std::string& target_dir) {
  auto config = model::LoadDraftConfig(model_dir, target_dir);
  if (!config.ok()) return config.status();
  auto checkpoint = model::OpenCheckpoint(model_dir, *config);
  if (!checkpoint.ok()) return checkpoint.status();
  LogContext(model_dir, *config);
  for (const std::string& note : checkpoint->notes) spdlog::warn("{}", note);
  return absl::OkStatus();
}

absl::Status CheckModelFlags(const std::string& flag, const std::string& model_dir) {
  if (model_dir.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, " is missing: give the folder of a Hugging Face checkpoint"));
  }
  for (absl::Status status :
       {InRange("threads", FLAGS_threads, 1, 256), InRange("block_size", FLAGS_block_size, 1, 256),
        InRange("kv_blocks", FLAGS_kv_blocks, 0, 1 << 26),
        InRange("max_context", FLAGS_max_context, 0, 1 << 24),
        InRange("max_step_tokens", FLAGS_max_step_tokens, 64, 1 << 16),
        InRange("gpu_memory_fraction", FLAGS_gpu_memory_fraction, 0.01, 1.0)}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<model::RankOptions> RankOptionsFor(const std::string& flag,
                                                  const std::string& model_dir, int sequences,
                                                  const std::string& target_dir) {
  if (absl::Status checked = CheckModelFlags(flag, model_dir); !checked.ok()) return checked;
  auto dtype = model::ParseDataType(FLAGS_dtype);
  if (!dtype.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dtype=", FLAGS_dtype, ": allowed are float32 and bfloat16"));
  }
  auto device = model::ParseDeviceKind(FLAGS_device);
  if (!device.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--device=", FLAGS_device, ": allowed are cpu and cuda"));
  }
  if (*device == model::DeviceKind::kCuda && FLAGS_reference_kernels) {
    return absl::InvalidArgumentError(
        "--reference_kernels=true with --device=cuda: the reference kernels are CPUs'");
  }
  const auto features = FeatureFlags();
  if (!features.ok()) return features.status();
  auto config = model::LoadDraftConfig(model_dir, target_dir);
  if (!config.ok()) return config.status();
  const auto context = ServedContext(model_dir, *config);
  if (!context.ok()) return context.status();
  model::RankOptions rank;
  rank.target_dir = target_dir;
  rank.device = *device;
  rank.dtype = *dtype;
  rank.block_size = FLAGS_block_size;
  rank.max_rows = FLAGS_max_step_tokens;
  rank.threads = FLAGS_threads;
  rank.batch_invariant = FLAGS_batch_invariant;
  const bool on_gpus = *device == model::DeviceKind::kCuda;
  rank.cuda_graphs = on_gpus && features->cuda_graphs;
  rank.flash_attention = on_gpus && features->flash_attention;
  rank.peer_sums = on_gpus && features->peer_sums;
  rank.reference = FLAGS_reference_kernels;
  rank.kv_blocks = FLAGS_kv_blocks;
  rank.kv_sizing.memory_fraction = FLAGS_gpu_memory_fraction;
  rank.kv_sizing.least = BlocksPerSequence(*context);
  if (rank.kv_blocks == 0 && !on_gpus) {
    rank.kv_blocks = DefaultKvBlocks(*config, *dtype, *context, sequences);
  }
  return rank;
}

void LimitDraftCache(int sessions, model::KvSizing* sizing) {
  sizing->share = kDraftKvShare;
  const int64_t useful = int64_t{sizing->least} * sessions;
  sizing->most = static_cast<int32_t>(std::min<int64_t>(sizing->most, useful));
}

absl::StatusOr<model::Features> FeatureFlags() {
  auto features = model::AllFeaturesBut(FLAGS_disable_features);
  if (features.ok()) return features;
  return Flag("disable_features", FLAGS_disable_features, features.status());
}

absl::Status CheckRanks() {
  auto config = model::LoadModelConfig(FLAGS_model);
  if (!config.ok()) return config.status();
  if (config->states) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--model=", FLAGS_model, " is a drafter of kind ", model::Name(config->states->kind),
        ": allowed is a model that has hidden "
        "states of its own (drafters: --draft_model, or `specfabric draft`)"));
  }
  const absl::Status split =
      model::CheckShape(*config, {FLAGS_tensor_parallel, FLAGS_pipeline_stages});
  if (!split.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--tensor_parallel=", FLAGS_tensor_parallel,
                                                   " --pipeline_stages=", FLAGS_pipeline_stages,
                                                   ": ", split.message()));
  }
  return absl::OkStatus();
}

absl::StatusOr<target::GroupOptions> GroupFlags() {
  const int ranks = FLAGS_tensor_parallel * FLAGS_pipeline_stages;
  const absl::Status processes = InRange("group_processes", FLAGS_group_processes, 1, ranks);
  if (!processes.ok()) return processes;
  target::GroupOptions group;
  const absl::Status durations = ParseDurationFlags(
      {{"group_timeout", FLAGS_group_timeout, &group.timeout, {.least = absl::Seconds(1)}}});
  if (!durations.ok()) return durations;
  group.processes = FLAGS_group_processes;
  group.listen = FLAGS_group_listen;
  if (group.processes == 1) return group;
  if (FLAGS_pipeline_stages > 1 && FLAGS_pipeline_stages % group.processes != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--group_processes=", group.processes, " with --pipeline_stages=", FLAGS_pipeline_stages,
        ": allowed are divisors of that, so that a process holds whole stages"));
  }
  absl::Status listen = transport::CheckAddress(group.listen);
  if (!listen.ok()) return Flag("group_listen", group.listen, listen);
  return group;
}

}  // namespace specfabric::app
