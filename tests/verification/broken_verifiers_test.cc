// Mistakes that are easily made in speculative sampling, made on purpose: the enumeration that
// passes the real verifiers must catch every one of them.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/verification/enumeration.h"

namespace specfabric::verification {
namespace {

using base::TokenId;
constexpr double kCaught = 1e-6;
constexpr double kExact = 1e-12;
constexpr int kPairs = 8;

// The largest error over some pairs of models.
double WorstError(const Drafter& drafter, const Verifier& verifier, int depth) {
  double worst = 0;
  for (int pair = 0; pair < kPairs; ++pair) {
    const ToyPair toy(200 + pair, 3, depth + 1, 0.05 * pair);
    worst = std::max(worst, Enumerate(toy, drafter, verifier).error);
  }
  return worst;
}

// The check on something broken; tells how far off it is.
void ExpectCaught(const char* name, const Drafter& drafter, const Verifier& verifier, int depth) {
  const double error = WorstError(drafter, verifier, depth);
  std::printf("total variation %.4f: %s\n", error, name);
  EXPECT_GT(error, kCaught) << name;
}

// The real verifiers, with the same drafter as a broken one.
void ExpectSoundWith(const Drafter& drafter, int depth) {
  EXPECT_LE(WorstError(drafter, AcceptByRejection, depth), kExact);
  EXPECT_LE(WorstError(drafter, AcceptByTraversal, depth), kExact);
}

// The drafter, with something done to what it sends.
Drafter Spoilt(const Drafter& drafter, void (*spoil)(VerifyInput*)) {
  return [=](const ToyPair& toy, Outcomes& outcomes) {
    VerifyInput input = drafter(toy, outcomes);
    spoil(&input);
    return input;
  };
}

double Probability(const VerifyInput& input, int node) {
  return input.q[input.q_row[node] * input.vocabulary + input.tree.tokens[node]];
}

// The input with the nodes of `order` alone, in that order (root included, parents first).
VerifyInput Keep(const VerifyInput& input, const std::vector<int>& order) {
  VerifyInput kept = input;
  kept.tree = speculation::TokenTree::Root(input.tree.tokens[0]);
  kept.q_row = {-1};
  std::vector<int> renamed(input.tree.size(), -1);
  renamed[0] = 0;
  for (int node : order) {
    if (node == 0 || renamed[input.tree.parents[node]] < 0) continue;
    renamed[node] = kept.tree.Add(renamed[input.tree.parents[node]], input.tree.tokens[node], 0.0f);
    kept.q_row.push_back(input.q_row[node]);
  }
  return kept;
}

std::vector<int> AllNodes(const speculation::TokenTree& tree) {
  std::vector<int> nodes(tree.size());
  std::iota(nodes.begin(), nodes.end(), 0);
  return nodes;
}

// --- Broken in what is sent ---------------------------------------------------------------------

struct Mistake {
  const char* name;
  speculation::SiblingDraw draw;
  std::vector<int> widths;
  void (*spoil)(VerifyInput*);
};

void SayWithReplacement(VerifyInput* input) {
  input->draw = speculation::SiblingDraw::kWithReplacement;
}
void SayWithoutReplacement(VerifyInput* input) {
  input->draw = speculation::SiblingDraw::kWithoutReplacement;
}

// Applies `change` to each row of q and normalises it again: the draft sampled from what it was.
void ChangeRows(VerifyInput* input, void (*change)(absl::Span<double>)) {
  for (size_t first = 0; first < input->q.size(); first += input->vocabulary) {
    const absl::Span<double> row = absl::MakeSpan(input->q).subspan(first, input->vocabulary);
    change(row);
    const sampling::Distribution distribution = sampling::Normalized(row);
    std::copy(distribution.begin(), distribution.end(), row.begin());
  }
}

// Logits that are not sent count as very small ones.
void TruncateOnTheWire(VerifyInput* input) {
  ChangeRows(input,
             [](absl::Span<double> row) { *std::min_element(row.begin(), row.end()) = 1e-9; });
}

// As bfloat16 does to logits, only more of it.
void RoundOnTheWire(VerifyInput* input) {
  ChangeRows(input, [](absl::Span<double> row) {
    for (double& value : row) value = std::ceil(value * 64) / 64;
  });
}

void SortSiblings(VerifyInput* input) {
  std::vector<int> order = AllNodes(input->tree);
  const std::vector<int32_t> depths = speculation::Depths(input->tree);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    if (depths[a] != depths[b]) return depths[a] < depths[b];
    return a != 0 && b != 0 && Probability(*input, a) > Probability(*input, b);
  });
  *input = Keep(*input, order);
}

// Leaves out the last node if the draft thinks little of it.
void TrimByOwnValue(VerifyInput* input) {
  std::vector<int> order = AllNodes(input->tree);
  if (Probability(*input, order.back()) < 0.3) order.pop_back();
  *input = Keep(*input, order);
}

void Deduplicate(VerifyInput* input) {
  std::vector<int> order;
  for (int node : AllNodes(input->tree)) {
    const int parent = input->tree.parents[node];
    if (node == 0 ||
        speculation::ChildWith(input->tree, parent, input->tree.tokens[node]) == node) {
      order.push_back(node);
    }
  }
  *input = Keep(*input, order);
}

TEST(BrokenVerifiersTest, AWrongDraftDistributionIsDetected) {
  constexpr speculation::SiblingDraw kWith = speculation::SiblingDraw::kWithReplacement;
  constexpr speculation::SiblingDraw kWithout = speculation::SiblingDraw::kWithoutReplacement;
  constexpr speculation::SiblingDraw kFixed = speculation::SiblingDraw::kDeterministic;
  const std::vector<Mistake> mistakes = {
      {"top-k siblings under the rule with replacement", kFixed, {2}, SayWithReplacement},
      {"top-k siblings under the rule without replacement", kFixed, {2}, SayWithoutReplacement},
      {"siblings without replacement under the rule with", kWithout, {2}, SayWithReplacement},
      {"q truncated on the wire alone", kWithout, {2}, TruncateOnTheWire},
      {"q truncated on the wire alone, chain", kWithout, {1, 1}, TruncateOnTheWire},
      {"q rounded on the wire alone", kWithout, {2}, RoundOnTheWire},
      {"siblings sorted by q", kWithout, {2}, SortSiblings},
      {"independent siblings sorted by q", kWith, {2}, SortSiblings},
      {"last sibling trimmed by its own value", kWithout, {2}, TrimByOwnValue},
      {"end of a chain trimmed by its own value", kWithout, {1, 1}, TrimByOwnValue},
      {"independent siblings deduplicated", kWith, {2}, Deduplicate},
  };
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(mistake.name);
    const int depth = static_cast<int>(mistake.widths.size());
    const Drafter drafter = Draws(mistake.draw, mistake.widths);
    ExpectSoundWith(drafter, depth);
    const Drafter spoilt = Spoilt(drafter, mistake.spoil);
    ExpectCaught(mistake.name, spoilt, AcceptByRejection, depth);
    ExpectCaught(mistake.name, spoilt, AcceptByTraversal, depth);
  }
}

// --- Broken verifiers ---------------------------------------------------------------------------

// Every node of the longest path was accepted, and still the residual of the last position is
// sampled over it.
speculation::Accepted OverwritesFullAcceptance(const VerifyInput& input, Randomness& random) {
  speculation::Accepted accepted = AcceptByRejection(input, random);
  if (accepted.path.empty() || !Children(input.tree, accepted.path.back()).empty()) return accepted;
  const int leaf = accepted.path.back(), parent = input.tree.parents[leaf];
  accepted.tokens.pop_back();
  const sampling::Residual residual =
      sampling::ResidualOf(1, input.TargetDistribution(parent), input.DraftDistribution(leaf));
  accepted.tokens.back() = random.Sample(parent, residual.distribution);
  accepted.path.pop_back();
  return accepted;
}

// Decides every root path by itself as if it were a chain, and takes the longest accepted.
speculation::Accepted TakesLongestPath(const VerifyInput& input, Randomness& random) {
  const speculation::TokenTree& tree = input.tree;
  speculation::Accepted best;
  for (int leaf = 0; leaf < tree.size(); ++leaf) {
    if (!Children(tree, leaf).empty()) continue;
    std::vector<int> path;
    for (int node = leaf; node >= 0; node = tree.parents[node]) path.push_back(node);
    std::reverse(path.begin(), path.end());
    VerifyInput chain = Keep(input, path);
    chain.p.clear();
    for (int node : path) {
      const sampling::Distribution p = input.TargetDistribution(node);
      chain.p.insert(chain.p.end(), p.begin(), p.end());
    }
    const speculation::Accepted accepted = AcceptByRejection(chain, random);
    if (accepted.tokens.size() > best.tokens.size()) best = accepted;
  }
  return best;
}

// Rejected, but samples from p instead of the residual.
speculation::Accepted SamplesFromTarget(const VerifyInput& input, Randomness& random) {
  speculation::Accepted accepted = AcceptByRejection(input, random);
  const int last = accepted.path.empty() ? 0 : accepted.path.back();
  accepted.tokens.back() = random.Sample(last, input.TargetDistribution(last));
  return accepted;
}

// Leaf to root, but with the chance of a token where that of its path belongs.
speculation::Accepted ForgetsThePath(const VerifyInput& input, Randomness& random) {
  speculation::Accepted accepted;
  int node = input.tree.size() - 1;
  for (; node > 0; node = input.tree.parents[node]) {
    const int parent = input.tree.parents[node];
    const TokenId x = input.tree.tokens[node];
    const double ratio = input.TargetDistribution(parent)[x] / input.DraftDistribution(node)[x];
    if (random.Accept(node, std::min(1.0, ratio))) break;
  }
  for (int i = 1; i <= node; ++i) {
    accepted.path.push_back(i);
    accepted.tokens.push_back(input.tree.tokens[i]);
  }
  const sampling::Distribution p = input.TargetDistribution(node);
  const bool full = node + 1 == input.tree.size();
  accepted.tokens.push_back(random.Sample(
      node, full ? p : sampling::ResidualOf(1, p, input.DraftDistribution(node + 1)).distribution));
  return accepted;
}

TEST(BrokenVerifiersTest, WrongDecisionsAreCaught) {
  struct Broken {
    const char* name;
    Verifier verifier;
    std::vector<int> widths;
  };
  const std::vector<Broken> all = {
      {"full acceptance overwritten by the residual", OverwritesFullAcceptance, {1}},
      {"full acceptance of a longer chain overwritten", OverwritesFullAcceptance, {1, 1}},
      {"longest accepted path", TakesLongestPath, {2}},
      {"longest accepted path, deeper", TakesLongestPath, {2, 1}},
      {"p instead of the residual", SamplesFromTarget, {1}},
      {"token's chance instead of the path's", ForgetsThePath, {1, 1}},
  };
  for (const Broken& broken : all) {
    SCOPED_TRACE(broken.name);
    const Drafter drafter = Draws(speculation::SiblingDraw::kWithoutReplacement, broken.widths);
    const int depth = static_cast<int>(broken.widths.size());
    ExpectSoundWith(drafter, depth);
    ExpectCaught(broken.name, drafter, broken.verifier, depth);
  }
}

// --- Noise used twice ---------------------------------------------------------------------------

// The distribution of a Gumbel-max draw with probs r by the very noise whose draw with probs q gave
// `winner`, where r[winner] = 0. As a race, token y arrives at E_y / q_y with E_y exponential. The
// winner's time T is exponential of rate 1, and what the others still need, E_y - q_y T, is
// exponential again. So in the race for r, y starts at c_y T, c_y = q_y / r_y, with rate r_y:
// between two starts those under way win by their rates, and T is integrated out.
sampling::Distribution DistributionBySharedNoise(const sampling::Distribution& q,
                                                 const sampling::Distribution& r) {
  std::vector<int> order;
  for (size_t y = 0; y < r.size(); ++y) {
    if (r[y] > 0) order.push_back(static_cast<int>(y));
  }
  const auto start = [&](int y) { return q[y] / r[y]; };
  std::sort(order.begin(), order.end(), [&](int a, int b) { return start(a) < start(b); });
  sampling::Distribution distribution(r.size(), 0.0);
  double rate = 0;    // of those under way
  double hazard = 0;  // still racing at the start of an interval with probability exp(-hazard T)
  for (size_t i = 0; i < order.size(); ++i) {
    rate += r[order[i]];
    const bool last = i + 1 == order.size();
    const double next = last ? 0 : hazard + rate * (start(order[i + 1]) - start(order[i]));
    const double ends = 1 / (1 + hazard) - (last ? 0 : 1 / (1 + next));
    for (size_t j = 0; j <= i; ++j) distribution[order[j]] += r[order[j]] / rate * ends;
    hazard = next;
  }
  return distribution;
}

// A single draft token, and where it is rejected a residual drawn with the draft's noise.
speculation::Accepted ResidualByDraftNoise(const VerifyInput& input, Randomness& random) {
  const sampling::Distribution p = input.TargetDistribution(0), q = input.DraftDistribution(1);
  const TokenId x = input.tree.tokens[1];
  if (random.Accept(1, std::min(1.0, p[x] / q[x]))) {
    return {.path = {1}, .tokens = {x, random.Sample(1, input.TargetDistribution(1))}};
  }
  const sampling::Distribution residual = sampling::ResidualOf(1, p, q).distribution;
  return {.path = {}, .tokens = {random.Sample(0, DistributionBySharedNoise(q, residual))}};
}

TEST(BrokenVerifiersTest, ResidualDrawnWithTheDraftsNoiseIsCaught) {
  const Drafter drafter = Draws(speculation::SiblingDraw::kWithoutReplacement, {1});
  ExpectSoundWith(drafter, 1);
  ExpectCaught("residual drawn with the draft's noise", drafter, ResidualByDraftNoise, 1);
}

// The distribution above against races that are run.
TEST(BrokenVerifiersTest, DistributionBySharedNoiseMatchesRaces) {
  const sampling::Distribution q = {0.5, 0.2, 0.25, 0.05}, r = {0.0, 0.3, 0.1, 0.6};
  const sampling::Distribution distribution = DistributionBySharedNoise(q, r);
  EXPECT_NEAR(std::accumulate(distribution.begin(), distribution.end(), 0.0), 1, kExact);
  std::mt19937 random(3);
  std::exponential_distribution<double> exponential;
  std::vector<int> wins(4, 0);
  int races = 0;
  while (races < 100'000) {
    std::vector<double> noise(4);
    for (double& e : noise) e = exponential(random);
    const auto first = [&](const sampling::Distribution& rates) {
      int best = -1;
      for (int y = 0; y < 4; ++y) {
        if (rates[y] == 0) continue;
        if (best < 0 || noise[y] / rates[y] < noise[best] / rates[best]) best = y;
      }
      return best;
    };
    if (first(q) != 0) continue;  // the draft's draw is the token without residual
    ++wins[first(r)];
    ++races;
  }
  for (int y = 0; y < 4; ++y)
    EXPECT_NEAR(wins[y] / 1e5, distribution[y], 0.008) << y;  // five sigma
}

// Two branches decided with the same numbers: nodes of one depth share their decision's uniform.
class SharedByDepth final : public Randomness {
 public:
  SharedByDepth(const speculation::TokenTree& tree, Randomness& random)
      : depths_(speculation::Depths(tree)), interval_(tree.size(), {0.0, 1.0}), random_(random) {}

  bool Accept(int node, double probability) override {
    // What earlier decisions have told about the uniform is an interval: accept below probability.
    auto& [low, high] = interval_[depths_[node]];
    const double cut = std::clamp(probability, low, high);
    const bool accepted = random_.Accept(node, (cut - low) / (high - low));
    (accepted ? high : low) = cut;
    return accepted;
  }
  TokenId Sample(int node, absl::Span<const double> probs) override {
    return random_.Sample(node, probs);
  }

 private:
  std::vector<int32_t> depths_;
  std::vector<std::pair<double, double>> interval_;  // by depth
  Randomness& random_;
};

TEST(BrokenVerifiersTest, BranchesThatShareNumbersAreCaught) {
  const Drafter drafter = Draws(speculation::SiblingDraw::kWithoutReplacement, {2, 1});
  const auto shared = [](speculation::Accepted (*verifier)(const VerifyInput&, Randomness&)) {
    return [=](const VerifyInput& input, Randomness& random) {
      SharedByDepth numbers(input.tree, random);
      return verifier(input, numbers);
    };
  };
  ExpectCaught("branches that share numbers", drafter, shared(AcceptByRejection), 2);
  ExpectCaught("branches that share numbers", drafter, shared(AcceptByTraversal), 2);
}

}  // namespace
}  // namespace specfabric::verification
