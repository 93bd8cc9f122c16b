#ifndef SPECFABRIC_BASE_DATA_TYPE_H_
#define SPECFABRIC_BASE_DATA_TYPE_H_

#include <cstdint>

namespace specfabric::base {

// The type of the elements of weights, activations, KV caches and logits.
enum class DataType : uint8_t { kFloat32, kBFloat16 };

constexpr int Bytes(DataType type) { return type == DataType::kFloat32 ? 4 : 2; }

inline const char* Name(DataType type) {
  return type == DataType::kFloat32 ? "float32" : "bfloat16";
}

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_DATA_TYPE_H_
