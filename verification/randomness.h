#ifndef SPECFABRIC_VERIFICATION_RANDOMNESS_H_
#define SPECFABRIC_VERIFICATION_RANDOMNESS_H_

// The random numbers of one verification round: drawn by Philox, or in tests that enumerate, every
// outcome in turn.

#include <array>
#include <cstdint>

#include "absl/types/span.h"
#include "base/isa.h"
#include "base/types.h"
#include "sampling/philox.h"
#include "sampling/uniform.h"
#include "speculation/tree.h"

namespace specfabric::verification {

// A verifier asks at most once for each (function, node) in a round.
class Randomness {
 public:
  virtual ~Randomness() = default;
  // True with this probability, in [0, 1]: never for 0, always for 1.
  virtual bool Accept(int node, double probability) = 0;
  // A token with probability probs[token] / sum of probs. probs: [vocabulary], not negative,
  // with a positive sum; need not be normalised. `node` is the last accepted one.
  virtual base::TokenId Sample(int node, absl::Span<const double> probs) = 0;
};

// The round that the numbers belong to.
struct RoundSite {
  uint64_t seed = 0;
  uint32_t position = 0;  // index, in prompt + output, of the first token that the round chooses
  uint32_t draw = 0;      // DrawNumber
};

// The Philox counter of a number: (purpose, position, draw, node, index).
//
//   function  purpose    position                        node                 index
//   Accept    kAccept    of the node's own token         the node             0
//   Sample    kResidual  of the token after `node`       last accepted node   0 and 1
//
// Counters differ within a round by node and between rounds by draw; drafting uses neither purpose.
// Accept is exact to 2^-33. Sample inverts the cumulative distribution in id order with 52 bits, so
// that a token of probability 1e-8 is sampled at its rate to seven digits. The root is not a draft
// token: its position is the one before the first that the round chooses, and only traversal calls
// Accept for it, with probability 1.
//
// Accept is AcceptUniform < probability; Sample is the first token at which the running sum of
// probs exceeds ResidualUniform times their sum. depth: of the node, below 2^16.
SPECFABRIC_HOST_DEVICE inline double AcceptUniform(const RoundSite& round, int node, int depth) {
  const sampling::DrawSite site{.purpose = sampling::Purpose::kAccept,
                                .position = round.position + static_cast<uint32_t>(depth) - 1,
                                .draw = round.draw,
                                .node = static_cast<uint32_t>(node)};
  return sampling::UniformFromWord(sampling::PhiloxWord(round.seed, site, 0));
}
SPECFABRIC_HOST_DEVICE inline double ResidualUniform(const RoundSite& round, int node, int depth) {
  const sampling::DrawSite site{.purpose = sampling::Purpose::kResidual,
                                .position = round.position + static_cast<uint32_t>(depth),
                                .draw = round.draw,
                                .node = static_cast<uint32_t>(node)};
  return sampling::UniformFromWords(sampling::PhiloxWord(round.seed, site, 0),
                                    sampling::PhiloxWord(round.seed, site, 1));
}

class PhiloxRandomness final : public Randomness {
 public:
  PhiloxRandomness(uint64_t seed, uint32_t position, uint32_t draw, speculation::TreeView tree);

  bool Accept(int node, double probability) override;
  base::TokenId Sample(int node, absl::Span<const double> probs) override;

  double AcceptUniform(int node) const {
    return verification::AcceptUniform(round_, node, depths_[node]);
  }
  double ResidualUniform(int node) const {
    return verification::ResidualUniform(round_, node, depths_[node]);
  }

 private:
  RoundSite round_;
  std::array<uint8_t, speculation::kMaxDraftNodes> depths_;
};

}  // namespace specfabric::verification

#endif  // SPECFABRIC_VERIFICATION_RANDOMNESS_H_
