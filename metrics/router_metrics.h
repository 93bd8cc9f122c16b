#ifndef SPECFABRIC_METRICS_ROUTER_METRICS_H_
#define SPECFABRIC_METRICS_ROUTER_METRICS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "metrics/registry.h"

namespace specfabric::metrics {

// What routers and autoscalers read of a vLLM server, under vLLM's names, of all targets of a
// gateway together. The series by position are created as targets name positions.
class RouterMetrics {
 public:
  RouterMetrics(Registry& registry, const std::string& model_name);

  // The series of accepted draft tokens of depth `position` + 1.
  Counter& AcceptedAt(size_t position);
  // Of vllm:cache_config_info, which is 1 for the present labels; there is no series before the
  // first call and after one with 0 blocks. On one thread.
  void SetCacheConfig(int32_t block_size, int64_t blocks);

  Gauge& running;
  Gauge& waiting;
  Gauge& kv_usage;  // 0 to 1
  Counter& drafts;
  Counter& draft_tokens;
  Counter& accepted_tokens;

 private:
  Registry& registry_;
  const std::string model_name_;
  std::vector<Counter*> accepted_at_;
  Gauge* cache_config_ = nullptr;
  int32_t block_size_ = 0;
  int64_t blocks_ = 0;
};

}  // namespace specfabric::metrics

#endif  // SPECFABRIC_METRICS_ROUTER_METRICS_H_
