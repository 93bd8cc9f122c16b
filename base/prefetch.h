#ifndef SPECFABRIC_BASE_PREFETCH_H_
#define SPECFABRIC_BASE_PREFETCH_H_

// Loops over more than the caches hold, each part behind pointers of its own, spend their time
// waiting for memory; told a few turns ahead what comes they need not. Only hints.

#include <cstddef>

namespace specfabric::base {

constexpr size_t kCacheLine = 64;

inline void Prefetch(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  for (size_t offset = 0; offset < bytes; offset += kCacheLine) __builtin_prefetch(at + offset);
}

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_PREFETCH_H_
