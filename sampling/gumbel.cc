#include "sampling/gumbel.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "sampling/philox.h"

namespace specfabric::sampling {
namespace {

// Philox blocks done at a time: one lane each. Twice what a register holds, so that one half is
// computed on while the other waits for its products.
constexpr int kLanes = 32;
constexpr int kChunk = 4 * kLanes;

// Four words of each of four lanes, from [word][lane] to [lane][word]. Spelled out in vectors of
// four, because compilers make single moves of the loop.
SPECFABRIC_ALWAYS_INLINE void Transpose(const float* w0, const float* w1, const float* w2,
                                        const float* w3, float* out) {
  using Four __attribute__((vector_size(16))) = float;
  Four a, b, c, d;
  std::memcpy(&a, w0, sizeof(a));
  std::memcpy(&b, w1, sizeof(b));
  std::memcpy(&c, w2, sizeof(c));
  std::memcpy(&d, w3, sizeof(d));
  const Four ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Four ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Four cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Four cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  const Four lanes[4] = {__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5),
                         __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7),
                         __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5),
                         __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7)};
  std::memcpy(out, lanes, sizeof(lanes));
}

// Philox's words for kLanes blocks from `block` on, as [word][lane]. Two lanes share a 64-bit
// number throughout, because their products are as wide: nothing ever moves between numbers.
SPECFABRIC_ALWAYS_INLINE void Words(uint64_t seed, const PhiloxBlock& origin, uint32_t block,
                                    uint32_t words[4][kLanes]) {
  static_assert(std::endian::native == std::endian::little);
  constexpr uint64_t kLow = 0xFFFFFFFF;
  const auto both = [](uint32_t word) { return word | (uint64_t{word} << 32); };
  uint64_t pairs[4][kLanes / 2];
  for (uint32_t pair = 0; pair < kLanes / 2; ++pair) {
    uint64_t c0 = (block + 2 * pair) | (uint64_t{block + 2 * pair + 1} << 32);
    uint64_t c1 = both(origin[1]), c2 = both(origin[2]), c3 = both(origin[3]);
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const uint64_t low0 = (c0 & kLow) * kPhiloxM0, high0 = (c0 >> 32) * kPhiloxM0;
      const uint64_t low1 = (c2 & kLow) * kPhiloxM1, high1 = (c2 >> 32) * kPhiloxM1;
      c0 = ((low1 >> 32) | (high1 & ~kLow)) ^ c1 ^ both(k0);
      c1 = (low1 & kLow) | (high1 << 32);
      c2 = ((low0 >> 32) | (high0 & ~kLow)) ^ c3 ^ both(k1);
      c3 = (low0 & kLow) | (high0 << 32);
      k0 += kPhiloxW0;
      k1 += kPhiloxW1;
    }
    pairs[0][pair] = c0;
    pairs[1][pair] = c1;
    pairs[2][pair] = c2;
    pairs[3][pair] = c3;
  }
  std::memcpy(words, pairs, sizeof(pairs));
}

// Noise of `chunks` chunks of kChunk ids, from block `block` on.
SPECFABRIC_ALWAYS_INLINE void Chunks(uint64_t seed, const PhiloxBlock& origin, uint32_t block,
                                     int64_t chunks, float* out) {
  for (int64_t chunk = 0; chunk < chunks; ++chunk, block += kLanes, out += kChunk) {
    uint32_t words[4][kLanes];
    Words(seed, origin, block, words);
    float g[4][kLanes];
    for (int word = 0; word < 4; ++word) {
      for (int lane = 0; lane < kLanes; ++lane) g[word][lane] = GumbelFromWord(words[word][lane]);
    }
    for (int lane = 0; lane < kLanes; lane += 4) {
      Transpose(&g[0][lane], &g[1][lane], &g[2][lane], &g[3][lane], out + 4 * lane);
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

void Dispatch(base::Isa isa, uint64_t seed, const PhiloxBlock& origin, uint32_t block,
              int64_t chunks, float* out) {
  switch (isa) {
    case base::Isa::kPortable:
      return ChunksPortable(seed, origin, block, chunks, out);
    case base::Isa::kAvx2:
      return ChunksAvx2(seed, origin, block, chunks, out);
    case base::Isa::kAvx512:
      return ChunksAvx512(seed, origin, block, chunks, out);
  }
}

}  // namespace

void GumbelNoise(uint64_t seed, uint32_t position, int32_t first, absl::Span<float> out) {
  GumbelNoise(base::BestIsa(), seed, position, first, out);
}

void GumbelNoise(base::Isa isa, uint64_t seed, uint32_t position, int32_t first,
                 absl::Span<float> out) {
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

}  // namespace specfabric::sampling
