#include "scheduler/kv/prefix_hash.h"

#include <algorithm>
#include <random>

#include "base/check.h"
#include "base/hash.h"

// Header-only use: no library at run time.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace specfabric::scheduler {
namespace {

uint64_t LowBits(int32_t bits) {
  return bits <= 0 ? 0 : bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
}

}  // namespace

PrefixHasher::PrefixHasher(std::optional<uint64_t> seed, int32_t bits)
    : mask_{LowBits(bits), LowBits(bits - 64)} {
  static_assert(sizeof(secret_) >= XXH3_SECRET_SIZE_MIN);
  SPECFABRIC_CHECK(bits >= 0 && bits <= 128);
  std::random_device random;
  for (size_t i = 0; i < secret_.size(); ++i) {
    secret_[i] = seed ? base::Mix64(*seed ^ base::Mix64(i)) : uint64_t{random()} << 32 | random();
  }
}

BlockKey PrefixHasher::Root(uint64_t model_salt, uint64_t cache_salt) const {
  return Hash({}, std::array{model_salt, cache_salt}.data(), 2 * sizeof(uint64_t));
}

BlockKey PrefixHasher::Extend(const BlockKey& parent,
                              absl::Span<const base::TokenId> tokens) const {
  return Hash(parent, tokens.data(), tokens.size() * sizeof(base::TokenId));
}

// The data is hashed first, then the parent and that hash together, which saves copying them into
// one buffer.
BlockKey PrefixHasher::Hash(const BlockKey& parent, const void* data, size_t bytes) const {
  const XXH128_hash_t own = XXH3_128bits_withSecret(data, bytes, secret_.data(), sizeof(secret_));
  const std::array chain = {parent.low, parent.high, own.low64, own.high64};
  const XXH128_hash_t hash =
      XXH3_128bits_withSecret(chain.data(), sizeof(chain), secret_.data(), sizeof(secret_));
  return {hash.low64 & mask_.low, hash.high64 & mask_.high};
}

}  // namespace specfabric::scheduler
