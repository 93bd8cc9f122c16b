#ifndef SPECFABRIC_MODEL_CPU_KV_CACHE_H_
#define SPECFABRIC_MODEL_CPU_KV_CACHE_H_

// One rank's paged keys and values. For every layer and KV head the keys of all physical slots lie
// together, [slot][stride], and so do the values. stride is head_dim rounded up to the 16 lanes of
// the kernels; the lanes above head_dim stay zero.

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "model/checkpoint/config.h"
#include "model/cpu/aligned_buffer.h"

namespace specfabric::model {

struct KvShape {
  int32_t layers = 0;
  int32_t kv_heads = 0;  // of this rank
  int32_t head_dim = 0;
  int32_t blocks = 0;
  int32_t block_size = 0;
  DataType dtype = DataType::kBFloat16;

  int32_t stride() const { return (head_dim + 15) / 16 * 16; }
  int64_t slots() const { return int64_t{blocks} * block_size; }
  int element_bytes() const { return base::Bytes(dtype); }
  int64_t block_bytes() const {
    return int64_t{2} * layers * kv_heads * block_size * stride() * element_bytes();
  }
};

class KvCache {
 public:
  // InvalidArgument: no blocks, or more slots than 2^31. ResourceExhausted: no memory.
  static absl::StatusOr<KvCache> Create(const KvShape& shape);

  const KvShape& shape() const { return shape_; }
  // [slot][stride] of one layer and head, in the cache's dtype.
  void* keys(int layer, int head) { return Plane(layer, 0, head); }
  void* values(int layer, int head) { return Plane(layer, 1, head); }
  // key, value: [head_dim], rounded to the cache's dtype.
  void Write(int layer, int head, int32_t slot, const float* key, const float* value);
  // Copies one slot's keys and values onto another, on all layers.
  void Move(int32_t from, int32_t to);

 private:
  std::byte* Plane(int layer, int which, int head) {
    const int64_t index = (int64_t{layer} * 2 + which) * shape_.kv_heads + head;
    return static_cast<std::byte*>(buffer_.data()) + index * plane_bytes_;
  }

  KvShape shape_;
  int64_t row_bytes_ = 0;
  int64_t plane_bytes_ = 0;
  AlignedBuffer buffer_;
};

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_CPU_KV_CACHE_H_
