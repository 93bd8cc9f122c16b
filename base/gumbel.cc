#include "base/gumbel.h"

#include <algorithm>
#include <array>

#include "base/philox.h"

namespace specfabric::base {
namespace {

// Philox blocks done at a time: one lane each.
constexpr int kLanes = 16;
constexpr int kChunk = 4 * kLanes;

// Noise of `chunks` chunks of kChunk ids, from block `block` on. The words stand as four arrays
// [lane], so that lanes run side by side, until they are interleaved at the end.
SPECFABRIC_ALWAYS_INLINE void Chunks(uint64_t seed, const PhiloxBlock& origin, uint32_t block,
                                     int64_t chunks, float* out) {
  for (int64_t chunk = 0; chunk < chunks; ++chunk, block += kLanes, out += kChunk) {
    float g[4][kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      uint32_t c0 = block + lane, c1 = origin[1], c2 = origin[2], c3 = origin[3];
      uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 10
      for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = uint64_t{kPhiloxM0} * c0;
        const uint64_t p1 = uint64_t{kPhiloxM1} * c2;
        c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
        c1 = static_cast<uint32_t>(p1);
        c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
        c3 = static_cast<uint32_t>(p0);
        k0 += kPhiloxW0;
        k1 += kPhiloxW1;
      }
      g[0][lane] = GumbelFromWord(c0);
      g[1][lane] = GumbelFromWord(c1);
      g[2][lane] = GumbelFromWord(c2);
      g[3][lane] = GumbelFromWord(c3);
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int word = 0; word < 4; ++word) out[4 * lane + word] = g[word][lane];
    }
  }
}

void ChunksPortable(uint64_t seed, const PhiloxBlock& origin, uint32_t block, int64_t chunks,
                    float* out) {
  Chunks(seed, origin, block, chunks, out);
}
SPECFABRIC_TARGET_AVX2 void ChunksAvx2(uint64_t seed, const PhiloxBlock& origin, uint32_t block,
                                       int64_t chunks, float* out) {
  Chunks(seed, origin, block, chunks, out);
}
SPECFABRIC_TARGET_AVX512 void ChunksAvx512(uint64_t seed, const PhiloxBlock& origin, uint32_t block,
                                           int64_t chunks, float* out) {
  Chunks(seed, origin, block, chunks, out);
}

void Dispatch(Isa isa, uint64_t seed, const PhiloxBlock& origin, uint32_t block, int64_t chunks,
              float* out) {
  switch (isa) {
    case Isa::kPortable:
      return ChunksPortable(seed, origin, block, chunks, out);
    case Isa::kAvx2:
      return ChunksAvx2(seed, origin, block, chunks, out);
    case Isa::kAvx512:
      return ChunksAvx512(seed, origin, block, chunks, out);
  }
}

}  // namespace

void GumbelNoise(uint64_t seed, uint32_t position, int32_t first, absl::Span<float> out) {
  GumbelNoise(BestIsa(), seed, position, first, out);
}

void GumbelNoise(Isa isa, uint64_t seed, uint32_t position, int32_t first, absl::Span<float> out) {
  const DrawSite site{.purpose = Purpose::kGumbel, .position = position};
  const int64_t size = static_cast<int64_t>(out.size());
  // Up to three ids before the first whole Philox block, then whole chunks straight into `out`,
  // then what is left by way of one more chunk.
  int64_t done = 0;
  for (; done < size && (first + done) % 4 != 0; ++done) {
    out[done] = GumbelFromWord(PhiloxWord(seed, site, static_cast<uint32_t>(first + done)));
  }
  const PhiloxBlock origin = PhiloxCounter(site, 0);
  const int64_t chunks = (size - done) / kChunk;
  Dispatch(isa, seed, origin, static_cast<uint32_t>((first + done) / 4), chunks, out.data() + done);
  done += chunks * kChunk;
  if (done < size) {
    std::array<float, kChunk> tail;
    Dispatch(isa, seed, origin, static_cast<uint32_t>((first + done) / 4), 1, tail.data());
    std::copy_n(tail.begin(), size - done, out.begin() + done);
  }
}

}  // namespace specfabric::base
