#ifndef SPECFABRIC_SPECULATION_RANDOMNESS_H_
#define SPECFABRIC_SPECULATION_RANDOMNESS_H_

// The random numbers of one verification round. Philox draws them in service; a test that
// enumerates takes every outcome in turn instead.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/isa.h"
#include "base/philox.h"
#include "base/types.h"
#include "speculation/tree.h"

namespace specfabric::speculation {

// A verifier asks at most once for each (function, node) in a round.
class Randomness {
 public:
  virtual ~Randomness() = default;
  // True with this probability, in [0, 1]: never at 0, always at 1.
  virtual bool Accept(int node, double probability) = 0;
  // A token with probability weights[token] / sum of weights. weights: [vocabulary], not negative,
  // with a positive sum; need not be normalised. `node` is the last accepted one.
  virtual base::TokenId Sample(int node, absl::Span<const double> weights) = 0;
};

// Which draw of a sequence's life this round is: the `draw` of base::DrawSite, the same number at
// the draft (DraftRequest::round). `attempt` counts the targets that the sequence was submitted to,
// `round` the drafts that its present target has asked for. A round is counted when its request is
// made, answered or not: re-routing, preemption and resuming elsewhere never repeat a draw. A
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

// Which round the numbers are of.
struct RoundSite {
  uint64_t seed = 0;
  uint32_t position = 0;  // index, in prompt + output, of the first token that the round chooses
  uint32_t draw = 0;      // DrawNumber
};

// Counter of a number: (purpose, position, draw, node, index).
//
//   function  purpose    position                        node                 index
//   Accept    kAccept    of the node's own token         the node             0
//   Sample    kResidual  of the token after `node`       last accepted node   0 and 1
//
// Within a round the node tells numbers apart, between rounds the draw, and neither purpose is used
// for drafting. Accept is exact to 2^-33. Sample inverts the cumulative distribution in id order
// with 52 bits, so that a token of probability 1e-8 comes at its rate to seven digits. The root is
// no guess: it has the position before the first that is chosen, and only traversal asks for it,
// with certainty as the answer.
//
// The numbers themselves: Accept is AcceptUniform < probability, Sample the first token at which
// the running sum of weights exceeds ResidualUniform times their sum. depth: of the node, below
// 2^16.
SPECFABRIC_HOST_DEVICE inline double AcceptUniform(const RoundSite& round, int node, int depth) {
  const base::DrawSite site{.purpose = base::Purpose::kAccept,
                            .position = round.position + static_cast<uint32_t>(depth) - 1,
                            .draw = round.draw,
                            .node = static_cast<uint32_t>(node)};
  return UniformFromWord(base::PhiloxWord(round.seed, site, 0));
}
SPECFABRIC_HOST_DEVICE inline double ResidualUniform(const RoundSite& round, int node, int depth) {
  const base::DrawSite site{.purpose = base::Purpose::kResidual,
                            .position = round.position + static_cast<uint32_t>(depth),
                            .draw = round.draw,
                            .node = static_cast<uint32_t>(node)};
  return UniformFromWords(base::PhiloxWord(round.seed, site, 0),
                          base::PhiloxWord(round.seed, site, 1));
}

class PhiloxRandomness final : public Randomness {
 public:
  PhiloxRandomness(uint64_t seed, uint32_t position, uint32_t draw, const TokenTree& tree);

  bool Accept(int node, double probability) override;
  base::TokenId Sample(int node, absl::Span<const double> weights) override;

  double AcceptUniform(int node) const {
    return speculation::AcceptUniform(round_, node, depths_[node]);
  }
  double ResidualUniform(int node) const {
    return speculation::ResidualUniform(round_, node, depths_[node]);
  }

 private:
  RoundSite round_;
  std::vector<int32_t> depths_;
};

}  // namespace specfabric::speculation

#endif  // SPECFABRIC_SPECULATION_RANDOMNESS_H_
