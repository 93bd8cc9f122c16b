#ifndef SPECFABRIC_BASE_HASH_H_
#define SPECFABRIC_BASE_HASH_H_

// Hashes that two processes compute alike. None of them is cryptographic.

#include <cstdint>
#include <string_view>

#include "absl/types/span.h"
#include "base/types.h"

namespace specfabric::base {

// The finaliser of SplitMix64 (Steele et al., OOPSLA 2014): a bijection that mixes all bits.
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Chained hash of a token prefix: Extend(hash of x[0..n), x[n]) is the hash of x[0..n+1).
constexpr uint64_t kEmptyPrefixHash = 0x5370656346616272;
constexpr uint64_t ExtendPrefixHash(uint64_t hash, TokenId token) {
  return Mix64(hash ^ Mix64(static_cast<uint32_t>(token)));
}
inline uint64_t ExtendPrefixHash(uint64_t hash, absl::Span<const TokenId> tokens) {
  for (TokenId token : tokens) hash = ExtendPrefixHash(hash, token);
  return hash;
}

// FNV-1a, for fingerprints of short strings and files.
constexpr uint64_t kFnvBasis = 0xCBF29CE484222325;
constexpr uint64_t Fnv1a(std::string_view bytes, uint64_t hash = kFnvBasis) {
  for (char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return hash;
}

// The seed of choice `c` of a request with n > 1 (verification.md section 0). Choice 0 keeps the
// request's own seed, so that n = 1 and the first of n agree.
constexpr uint64_t ChoiceSeed(uint64_t seed, uint32_t choice) {
  return choice == 0 ? seed : Mix64(seed ^ Mix64(choice));
}

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_HASH_H_
