#ifndef SPECFABRIC_SAMPLING_PHILOX_H_
#define SPECFABRIC_SAMPLING_PHILOX_H_

// Philox4x32-10 (Salmon et al., SC 2011): random numbers as a pure function of (key, counter), so
// that a draft and a target on different machines see the same noise without exchanging any.

#include <array>
#include <cstdint>

#include "base/isa.h"

namespace specfabric::sampling {

// Purposes never share numbers (verification.md section 0).
enum class Purpose : uint32_t { kGumbel = 0, kDraft = 1, kAccept = 2, kResidual = 3 };

// Where in a sequence's life a number is drawn. `position` is the index, in prompt + output, of the
// token that is being chosen. `draw` and `node` are zero for kGumbel: its noise depends on the
// position and the vocabulary index alone.
struct DrawSite {
  Purpose purpose = Purpose::kGumbel;
  uint32_t position = 0;
  uint32_t draw = 0;
  uint32_t node = 0;  // below 2^16
};

using PhiloxBlock = std::array<uint32_t, 4>;

constexpr uint32_t kPhiloxM0 = 0xD2511F53, kPhiloxM1 = 0xCD9E8D57;  // multipliers
constexpr uint32_t kPhiloxW0 = 0x9E3779B9, kPhiloxW1 = 0xBB67AE85;  // key increments

SPECFABRIC_HOST_DEVICE inline PhiloxBlock Philox4x32(uint64_t key, PhiloxBlock counter) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{kPhiloxM0} * counter[0];
    const uint64_t p1 = uint64_t{kPhiloxM1} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += kPhiloxW0;
    k1 += kPhiloxW1;
  }
  return counter;
}

// The counter of the block that holds the words for indices 4*block .. 4*block+3.
SPECFABRIC_HOST_DEVICE inline PhiloxBlock PhiloxCounter(const DrawSite& site, uint32_t block) {
  return {block, site.position, site.draw,
          (static_cast<uint32_t>(site.purpose) << 16) | (site.node & 0xFFFFu)};
}

// The 32-bit word for one vocabulary (or draw) index.
SPECFABRIC_HOST_DEVICE inline uint32_t PhiloxWord(uint64_t seed, const DrawSite& site,
                                                  uint32_t index) {
  const PhiloxBlock words = Philox4x32(seed, PhiloxCounter(site, index / 4));
  // Chosen and not indexed, which would take a GPU's local memory.
  const uint32_t low = index % 2 == 0 ? words[0] : words[1];
  const uint32_t high = index % 2 == 0 ? words[2] : words[3];
  return index % 4 < 2 ? low : high;
}

}  // namespace specfabric::sampling

#endif  // SPECFABRIC_SAMPLING_PHILOX_H_
