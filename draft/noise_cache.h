#ifndef SPECFABRIC_DRAFT_NOISE_CACHE_H_
#define SPECFABRIC_DRAFT_NOISE_CACHE_H_

// Gumbel noise by position of a text, of all sequences together: the nodes of one level share a
// row, and so do rounds that come to the same position. The constructor allocates all its memory,
// which does not grow with the number of sequences. Owned by the draft engine; not thread-safe.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace specfabric::draft {

class NoiseCache {
 public:
  // As many rows as fit into `bytes`, at least one.
  NoiseCache(size_t bytes, int32_t vocabulary);

  // [vocabulary], as sampling::GumbelNoise makes it. Valid until the next call.
  absl::Span<const float> Row(uint64_t seed, int32_t position);

  size_t rows() const { return entries_.size(); }
  uint64_t made() const { return made_; }

 private:
  // Rows that one position may be in: the least recently used of them makes room.
  static constexpr size_t kWays = 8;
  struct Entry {
    uint64_t seed = 0;
    int32_t position = -1;  // none
    uint64_t used = 0;      // the call that used it last
  };

  size_t vocabulary_;
  std::vector<Entry> entries_;
  std::vector<float> values_;  // [entries, vocabulary]
  uint64_t calls_ = 0, made_ = 0;
};

}  // namespace specfabric::draft

#endif  // SPECFABRIC_DRAFT_NOISE_CACHE_H_
