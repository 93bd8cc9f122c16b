#ifndef SPECFABRIC_TESTS_VERIFICATION_ENUMERATION_H_
#define SPECFABRIC_TESTS_VERIFICATION_ENUMERATION_H_

// The distribution of what a round of speculation emits, found by running it once for every outcome
// of every random choice: the draft's draws, the verifier's decisions and the tokens that it
// samples.

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "verification/reference/acceptance.h"

namespace specfabric::verification {

using Text = std::vector<base::TokenId>;

// Stands in for chance. ForEach runs `experiment` again and again, each time with another sequence
// of choices, until all of positive probability have been had.
class Outcomes final : public Randomness {
 public:
  static void ForEach(const std::function<void(Outcomes&)>& experiment);

  // An index, with probability probs[index] / sum.
  int Choose(absl::Span<const double> probs);
  bool Accept(int node, double probability) override;
  base::TokenId Sample(int node, absl::Span<const double> probs) override;

  // The probability of the choices made so far in this run.
  double probability() const { return probability_; }

 private:
  struct Choice {
    std::vector<double> probs;
    double sum;
    size_t taken;
  };
  void Restart();
  bool Advance();  // to the next sequence of choices; false after the last

  std::vector<Choice> choices_;
  size_t made_ = 0;
  double probability_ = 1;
};

// A target and a draft over a small vocabulary: a random row each for every text of up to
// `length - 1` tokens. `length` is how many tokens of the emitted text are looked at. The draft's
// rows are such as bfloat16 probs can say, the largest of which is 1.
class ToyPair {
 public:
  // zeros: the chance of each entry to be zero (one is always left).
  ToyPair(uint32_t seed, int vocabulary, int length, double zeros);

  int vocabulary() const { return vocabulary_; }
  int length() const { return length_; }
  const sampling::Distribution& p(const Text& text) const { return p_[Index(text)]; }
  const sampling::Distribution& q(const Text& text) const { return q_[Index(text)]; }

 private:
  size_t Index(const Text& text) const;

  int vocabulary_;
  int length_;
  std::vector<sampling::Distribution> p_, q_;
};

// Tokens from the first below the root to `node`.
Text PathText(const speculation::TokenTree& tree, int node);

// A draft's part of a round: draws a tree under the empty text. Fills tree, draw, q and q_row.
using Drafter = std::function<VerifyInput(const ToyPair&, Outcomes&)>;

// Every node of depth d gets widths[d] children, drawn as `draw` says; fewer where q has too few
// tokens to draw without replacement. The nodes of a level are drawn in order, independently.
Drafter Draws(speculation::SiblingDraw draw, std::vector<int> widths);

// A tree whose shape depends on what was drawn, by values drawn earlier only: a node has children
// only if the draft gives its path at least a quarter, and a second one only if the first was not
// the draft's favourite. Up to `depth` levels.
Drafter DrawsByValue(speculation::SiblingDraw draw, int depth);

// What a target makes of it: the tree goes through the codec of DraftReply, and where
// `verification` needs rows, they go through the tensor of probs, from which q is read back.
VerifyInput OverTheWire(VerifyInput input, speculation::VerificationMethod verification);
// The same draft seen from behind the wire.
Drafter ThroughTheWire(Drafter drafter, speculation::VerificationMethod verification);

// Which token sibling number `sibling` gets: a draw from q, given its elder siblings.
// Returns kNoToken if none is left.
base::TokenId DrawSibling(speculation::SiblingDraw draw, const sampling::Distribution& q,
                          const Text& elder, Outcomes& outcomes);

// Sets input.p to the target's rows.
void AddTargetRows(const ToyPair& toy, VerifyInput* input);

using Verifier = std::function<speculation::Accepted(const VerifyInput&, Randomness&)>;

struct Enumerated {
  double error = 0;   // total variation between the emitted distribution and plain sampling from p
  double length = 0;  // expected number of accepted nodes
  double probability = 0;            // of all outcomes together: 1
  std::vector<double> distribution;  // [vocabulary ^ length], first token most significant
};

// The distribution of the first toy.length() tokens where one round is followed by plain sampling.
Enumerated Enumerate(const ToyPair& toy, const Drafter& drafter, const Verifier& verifier);

// The distribution of toy.length() tokens sampled from p one by one.
std::vector<double> PlainDistribution(const ToyPair& toy);

}  // namespace specfabric::verification

#endif  // SPECFABRIC_TESTS_VERIFICATION_ENUMERATION_H_
