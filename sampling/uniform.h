#ifndef SPECFABRIC_SAMPLING_UNIFORM_H_
#define SPECFABRIC_SAMPLING_UNIFORM_H_

// Uniform numbers from random words, and the number that tells the draws of a sequence apart.

#include <cstdint>

#include "base/isa.h"

namespace specfabric::sampling {

// Which draw of a sequence's life this round is: the `draw` of sampling::DrawSite, the same number
// at the draft (DraftRequest::draw). `attempt` counts the targets that the sequence was submitted
// to, `round` the drafts that its present target has asked for. A round is counted when its request
// is made, answered or not: re-routing, preemption and resuming elsewhere never repeat a draw. A
// repeated one would be lossy, since numbers that rejected a token once would meet it again.
constexpr uint32_t kMaxAttempt = (1u << 8) - 1;
constexpr uint32_t kMaxRound = (1u << 24) - 1;
constexpr uint32_t DrawNumber(uint32_t attempt, uint32_t round) {
  return ((attempt & kMaxAttempt) << 24) | (round & kMaxRound);
}

// The midpoint rule: a uniform number in (0, 1), never 0 or 1, from 32 or 52 random bits.
constexpr double UniformFromWord(uint32_t word) { return (word + 0.5) * 0x1p-32; }
constexpr double UniformFromWords(uint32_t high, uint32_t low) {
  const uint64_t bits = (uint64_t{high} << 20) | (low >> 12);
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

}  // namespace specfabric::sampling

#endif  // SPECFABRIC_SAMPLING_UNIFORM_H_
