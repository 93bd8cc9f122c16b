#include "model/cpu/kv_cache.h"

#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/float16.h"

namespace specfabric::model {
namespace {

void Store(DataType dtype, const float* from, int count, std::byte* to) {
  if (dtype == DataType::kFloat32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  auto* out = reinterpret_cast<uint16_t*>(to);
  for (int i = 0; i < count; ++i) out[i] = RoundToBFloat16(from[i]);
}

}  // namespace

absl::StatusOr<KvCache> KvCache::Create(const KvShape& shape) {
  if (shape.blocks < 1 || shape.block_size < 1 ||
      shape.slots() > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a KV cache of ", shape.blocks, " blocks of ", shape.block_size,
                     " slots; allowed: at least 1 of each, and at most 2147483647 slots"));
  }
  KvCache cache;
  cache.shape_ = shape;
  cache.row_bytes_ = int64_t{shape.stride()} * shape.element_bytes();
  cache.plane_bytes_ = shape.slots() * cache.row_bytes_;
  absl::StatusOr<AlignedBuffer> buffer =
      AlignedBuffer::Create(static_cast<size_t>(shape.block_bytes() * shape.blocks));
  if (!buffer.ok()) {
    return absl::Status(
        buffer.status().code(),
        absl::StrCat("KV cache of ", shape.blocks, " blocks: ", buffer.status().message()));
  }
  cache.buffer_ = *std::move(buffer);
  return cache;
}

void KvCache::Write(int layer, int head, int32_t slot, const float* key, const float* value) {
  const int64_t offset = slot * row_bytes_;
  Store(shape_.dtype, key, shape_.head_dim, Plane(layer, 0, head) + offset);
  Store(shape_.dtype, value, shape_.head_dim, Plane(layer, 1, head) + offset);
}

void KvCache::Move(int32_t from, int32_t to) {
  const int planes = shape_.layers * 2 * shape_.kv_heads;
  std::byte* plane = static_cast<std::byte*>(buffer_.data());
  for (int i = 0; i < planes; ++i, plane += plane_bytes_) {
    std::memmove(plane + to * row_bytes_, plane + from * row_bytes_, row_bytes_);
  }
}

}  // namespace specfabric::model
