#include "draft/noise_cache.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "sampling/gumbel.h"
#include "sampling/sampling.h"

namespace specfabric::draft {

NoiseCache::NoiseCache(size_t bytes, int32_t vocabulary)
    : vocabulary_(vocabulary),
      entries_(std::max<size_t>(1, bytes / (vocabulary_ * sizeof(float)))),
      values_(entries_.size() * vocabulary_) {}

absl::Span<const float> NoiseCache::Row(uint64_t seed, int32_t position) {
  const size_t ways = std::min(kWays, entries_.size());
  const size_t first = absl::HashOf(seed, position) % (entries_.size() / ways) * ways;
  const auto set = entries_.begin() + static_cast<ptrdiff_t>(first);
  const auto set_end = set + static_cast<ptrdiff_t>(ways);
  auto entry = std::find_if(
      set, set_end, [&](const Entry& e) { return e.position == position && e.seed == seed; });
  const bool known = entry != set_end;
  if (!known) {
    entry = std::min_element(set, set_end,
                             [](const Entry& a, const Entry& b) { return a.used < b.used; });
  }
  entry->used = ++calls_;
  const absl::Span<float> row = absl::MakeSpan(values_).subspan(
      static_cast<size_t>(entry - entries_.begin()) * vocabulary_, vocabulary_);
  if (known) return row;
  entry->seed = seed;
  entry->position = position;
  ++made_;
  sampling::GumbelNoise(seed, static_cast<uint32_t>(position), 0, row);
  return row;
}

}  // namespace specfabric::draft
