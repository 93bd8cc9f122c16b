#include "metrics/router_metrics.h"

#include "metrics/vllm_labels.h"

namespace specfabric::metrics {
namespace {

constexpr const char* kCacheConfig = "vllm:cache_config_info";

}  // namespace

RouterMetrics::RouterMetrics(Registry& registry, const std::string& model_name)
    : running(registry.AddGauge("vllm:num_requests_running",
                                "Sequences in the batches of all connected targets",
                                VllmLabels(model_name))),
      waiting(registry.AddGauge("vllm:num_requests_waiting",
                                "Sequences in the queues of all connected targets",
                                VllmLabels(model_name))),
      kv_usage(registry.AddGauge("vllm:kv_cache_usage_perc",
                                 "KV blocks in use over all KV blocks of the targets, 0 to 1",
                                 VllmLabels(model_name))),
      drafts(registry.AddCounter("vllm:spec_decode_num_drafts_total",
                                 "`specfabric_drafts_total` of all targets",
                                 VllmLabels(model_name))),
      draft_tokens(registry.AddCounter("vllm:spec_decode_num_draft_tokens_total",
                                       "`specfabric_drafted_tokens_total` of all targets",
                                       VllmLabels(model_name))),
      accepted_tokens(registry.AddCounter("vllm:spec_decode_num_accepted_tokens_total",
                                          "`specfabric_accepted_tokens_total` of all targets",
                                          VllmLabels(model_name))),
      registry_(registry),
      model_name_(model_name) {}

Counter& RouterMetrics::AcceptedAt(size_t position) {
  while (accepted_at_.size() <= position) {
    Labels labels = {{"position", std::to_string(accepted_at_.size())}};
    labels.merge(VllmLabels(model_name_));
    accepted_at_.push_back(&registry_.AddCounter(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "`specfabric_accepted_tokens_per_position_total` of all targets", labels));
  }
  return *accepted_at_[position];
}

void RouterMetrics::SetCacheConfig(int32_t block_size, int64_t blocks) {
  if (block_size == block_size_ && blocks == blocks_) return;
  block_size_ = block_size;
  blocks_ = blocks;
  if (cache_config_ != nullptr) registry_.Remove(kCacheConfig, cache_config_);
  cache_config_ = nullptr;
  if (blocks == 0) return;
  cache_config_ =
      &registry_.AddGauge(kCacheConfig, "1; tokens of a KV block, and the blocks of all targets",
                          {{"engine", "0"},
                           {"block_size", std::to_string(block_size)},
                           {"num_gpu_blocks", std::to_string(blocks)}});
  cache_config_->Set(1);
}

}  // namespace specfabric::metrics
