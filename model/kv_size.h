#ifndef SPECFABRIC_MODEL_KV_SIZE_H_
#define SPECFABRIC_MODEL_KV_SIZE_H_

// How many KV blocks a model on a GPU gets: as many as fit into the memory that is left once its
// weights, its buffers and a captured graph are there.

#include <cstdint>

#include "absl/status/statusor.h"

namespace specfabric::model {

// More than any GPU has room for with a model of practical size; with a tiny one it limits what the
// accounting of blocks takes of the host's memory.
constexpr int32_t kMostKvBlocks = 1 << 20;

struct KvSizing {
  // The part of the GPU's memory that may be in use once the cache is there, by all processes on
  // that GPU together.
  double memory_fraction = 0.9;
  // The part of what is left of it that the cache takes.
  double share = 1.0;
  // Fewer blocks are an error, more are not taken. `least` is mostly one whole context.
  int32_t least = 1;
  int32_t most = kMostKvBlocks;
  // What the process allocates on the GPU after the model is loaded; not left to the cache.
  int64_t reserved_bytes = 0;
};

// Of one GPU, in bytes; what other processes use is not free.
struct GpuMemory {
  int64_t free = 0;
  int64_t total = 0;
};

// ResourceExhausted: less than sizing.least blocks fit; one line with what is free, what is needed
// and what can be changed.
absl::StatusOr<int32_t> KvBlocksFor(const KvSizing& sizing, const GpuMemory& memory,
                                    int64_t block_bytes);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_KV_SIZE_H_
