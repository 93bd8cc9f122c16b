#ifndef SPECFABRIC_MODEL_ATTENTION_H_
#define SPECFABRIC_MODEL_ATTENTION_H_

// Attention of all rows of a batch over one layer of the paged cache, scores and softmax in
// float32. Two implementations that must agree: cpu/attention.h and reference/attention.h.

#include <cstdint>

#include "model/attention_plan.h"
#include "model/cpu/kv_cache.h"

namespace specfabric::model {

struct AttentionInputs {
  const AttentionPlan* plan = nullptr;
  KvCache* cache = nullptr;
  int32_t layer = 0;
  int32_t heads = 0;  // of this rank; a multiple of the cache's KV heads
  // [rows][heads][cache stride], rotated and scaled by head_dim^-1/2; lanes above head_dim zero.
  const float* queries = nullptr;
};

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_ATTENTION_H_
