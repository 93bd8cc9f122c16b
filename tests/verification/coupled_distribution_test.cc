// Coupled verification by enumeration. The noise of every position takes one of a few vectors, with
// probabilities that are known; p is then, by definition, the distribution of the target's choice
// under that noise. Over every combination, whole generations by rounds have the distribution of
// plain sampling, whatever the draft does with the noise that it shares.

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/verification/enumeration.h"

namespace specfabric::verification {
namespace {

using base::TokenId;
constexpr int kVocabulary = 3;
constexpr int kLength = 3;   // tokens of a generation
constexpr int kVectors = 5;  // that the noise of a position may be
constexpr int kDepth = 2;    // of the deepest tree

struct NoiseDistribution {
  std::vector<std::vector<double>> vectors;  // [kVectors][kVocabulary]
  std::vector<double> probs;                 // [kVectors]
};
NoiseDistribution RandomNoiseDistribution(uint32_t seed) {
  std::mt19937 random(seed);
  std::exponential_distribution<double> exponential;
  NoiseDistribution distribution;
  for (int i = 0; i < kVectors; ++i) {
    distribution.vectors.emplace_back();
    for (int x = 0; x < kVocabulary; ++x)
      distribution.vectors[i].push_back(-std::log(exponential(random)));
    distribution.probs.push_back(0.1 + exponential(random));
  }
  distribution.probs = sampling::Normalized(distribution.probs);
  return distribution;
}

// Ids by perturbed score, best first, without those of no probability.
std::vector<TokenId> SortedByScore(const sampling::Distribution& row,
                                   const std::vector<double>& noise) {
  std::vector<TokenId> ids;
  for (int x = 0; x < kVocabulary; ++x) {
    if (row[x] > 0) ids.push_back(x);
  }
  const auto score = [&](TokenId x) { return std::log(row[x]) + noise[x]; };
  std::sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) { return score(a) > score(b); });
  return ids;
}

// One generation's noise: a position's vector is chosen when first asked for. Positions past the
// last that is looked at have one as well.
class Noise {
 public:
  Noise(const NoiseDistribution& distribution, Outcomes& outcomes)
      : distribution_(distribution), outcomes_(outcomes) {}
  const std::vector<double>& At(int position) {
    if (chosen_.size() <= static_cast<size_t>(position)) chosen_.resize(position + 1, -1);
    if (chosen_[position] < 0) chosen_[position] = outcomes_.Choose(distribution_.probs);
    return distribution_.vectors[chosen_[position]];
  }

 private:
  const NoiseDistribution& distribution_;
  Outcomes& outcomes_;
  std::vector<int> chosen_;
};

// Rows depend on the last two tokens of the text, so that they exist at any length.
struct Models {
  ToyPair rows;
  Text Context(const Text& text) const {
    return Text(text.end() - std::min<std::ptrdiff_t>(2, std::ssize(text)), text.end());
  }
  const sampling::Distribution& p(const Text& text) const { return rows.p(Context(text)); }
  const sampling::Distribution& q(const Text& text) const { return rows.q(Context(text)); }
};

Text Joined(Text text, const Text& more) {
  text.insert(text.end(), more.begin(), more.end());
  return text;
}

using CoupledDrafter =
    std::function<speculation::TokenTree(const Models&, const Text&, Noise&, Outcomes&)>;
// Which noise a verifier uses for the tokens after a node of this depth.
using Positions = std::function<int(int base, int depth)>;

// One round after `text`.
using Round = std::function<speculation::Accepted(const Text& text, Noise&, Outcomes&)>;

// Of generations by rounds.
std::vector<double> GeneratedDistribution(const NoiseDistribution& noise_distribution,
                                          const Round& round) {
  std::vector<double> distribution(std::pow(kVocabulary, kLength), 0.0);
  Outcomes::ForEach([&](Outcomes& outcomes) {
    Noise noise(noise_distribution, outcomes);
    Text text;
    while (static_cast<int>(text.size()) < kLength) {
      text = Joined(text, round(text, noise, outcomes).tokens);
    }
    text.resize(kLength);
    size_t index = 0;
    for (TokenId token : text) index = index * kVocabulary + token;
    distribution[index] += outcomes.probability();
  });
  return distribution;
}

speculation::Accepted CoupledRound(const Models& models, const CoupledDrafter& drafter,
                                   const Positions& positions, const Text& text, Noise& noise,
                                   Outcomes& outcomes) {
  VerifyInput input{.tree = drafter(models, text, noise, outcomes),
                    .draw = speculation::SiblingDraw::kCoupledTopK,
                    .vocabulary = kVocabulary,
                    .p = {},
                    .q = {},
                    .q_row = {}};
  input = OverTheWire(std::move(input), speculation::VerificationMethod::kCoupled);
  int depth = 0;
  for (int node = 0; node < input.tree.size(); ++node) {
    const Text path = PathText(input.tree, node);
    depth = std::max(depth, static_cast<int>(path.size()));
    const sampling::Distribution& p = models.p(Joined(text, path));
    input.p.insert(input.p.end(), p.begin(), p.end());
  }
  std::vector<double> rows;
  for (int d = 0; d <= depth; ++d) {
    const std::vector<double>& g = noise.At(positions(static_cast<int>(text.size()), d));
    rows.insert(rows.end(), g.begin(), g.end());
  }
  return AcceptCoupled(input, rows);
}

// Of the target's choice where its row is `row`.
sampling::Distribution ChoiceDistribution(const sampling::Distribution& row,
                                          const NoiseDistribution& noise) {
  sampling::Distribution p(kVocabulary, 0.0);
  for (int k = 0; k < kVectors; ++k) p[SortedByScore(row, noise.vectors[k])[0]] += noise.probs[k];
  return p;
}

// A round by draft probabilities: two siblings, and a child of the first, drawn from q.
speculation::Accepted SampledRound(const Models& models, const NoiseDistribution& noise,
                                   const Verifier& verifier, const Text& text, Outcomes& outcomes) {
  constexpr auto kDraw = speculation::SiblingDraw::kWithoutReplacement;
  VerifyInput input{.tree = speculation::TokenTree::Root(0),
                    .draw = kDraw,
                    .vocabulary = kVocabulary,
                    .p = {},
                    .q = {},
                    .q_row = {0}};
  const auto draw = [&](int parent, int count, int row) {
    const sampling::Distribution& q = models.q(Joined(text, PathText(input.tree, parent)));
    input.q.insert(input.q.end(), q.begin(), q.end());
    Text elder;
    for (int i = 0; i < count; ++i) {
      const TokenId token = DrawSibling(kDraw, q, elder, outcomes);
      if (token == base::kNoToken) break;
      elder.push_back(token);
      input.tree.Add(parent, token, 0.0f);
      input.q_row.push_back(row);
    }
  };
  draw(0, 2, 0);
  draw(1, 1, 1);
  for (int node = 0; node < input.tree.size(); ++node) {
    const auto p = ChoiceDistribution(models.p(Joined(text, PathText(input.tree, node))), noise);
    input.p.insert(input.p.end(), p.begin(), p.end());
  }
  return verifier(input, outcomes);
}

// Token by token, each with noise of its own.
std::vector<double> PlainDistribution(const Models& models,
                                      const NoiseDistribution& noise_distribution) {
  std::vector<double> distribution = {1};
  std::vector<Text> texts = {{}};
  for (int n = 0; n < kLength; ++n) {
    std::vector<double> longer;
    std::vector<Text> longer_texts;
    for (size_t i = 0; i < distribution.size(); ++i) {
      const auto p = ChoiceDistribution(models.p(texts[i]), noise_distribution);
      for (int x = 0; x < kVocabulary; ++x) {
        longer.push_back(distribution[i] * p[x]);
        longer_texts.push_back(Joined(texts[i], {x}));
      }
    }
    distribution = longer;
    texts = longer_texts;
  }
  return distribution;
}

// Children of every node down to kDepth, as `children` says.
CoupledDrafter Grown(std::function<std::vector<TokenId>(const Models&, const Text&, Noise&)> f) {
  return [f = std::move(f)](const Models& models, const Text& text, Noise& noise, Outcomes&) {
    speculation::TokenTree tree = speculation::TokenTree::Root(0);
    for (int node = 0; node < tree.size(); ++node) {
      const Text path = PathText(tree, node);
      if (static_cast<int>(path.size()) == kDepth) break;
      for (TokenId token : f(models, Joined(text, path), noise)) tree.Add(node, token, 0.0f);
    }
    return tree;
  };
}

std::vector<TokenId> First(const std::vector<TokenId>& ids, size_t count) {
  return {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(std::min(ids.size(), count))};
}

int Straight(int base, int depth) { return base + depth; }

double Error(const std::vector<double>& a, const std::vector<double>& b) {
  double error = 0;
  for (size_t i = 0; i < a.size(); ++i) error += std::abs(a[i] - b[i]) / 2;
  return error;
}

const std::vector<CoupledDrafter>& Drafters() {
  static const auto* drafters = new std::vector<CoupledDrafter>{
      // Gumbel top-k, as drafts do.
      Grown([](const Models& models, const Text& text, Noise& noise) {
        return First(SortedByScore(models.q(text), noise.At(static_cast<int>(text.size()))), 1);
      }),
      Grown([](const Models& models, const Text& text, Noise& noise) {
        return First(SortedByScore(models.q(text), noise.At(static_cast<int>(text.size()))), 2);
      }),
      // Without noise.
      Grown([](const Models& models, const Text& text, Noise&) {
        return First(SortedByScore(models.q(text), {0, 0, 0}), 2);
      }),
      // An adversary that knows what the target will choose: never proposes it.
      Grown([](const Models& models, const Text& text, Noise& noise) {
        std::vector<TokenId> ids =
            SortedByScore(models.p(text), noise.At(static_cast<int>(text.size())));
        ids.erase(ids.begin());
        return ids;
      }),
      // And one that proposes it only where the next position's noise is of one kind.
      Grown([](const Models& models, const Text& text, Noise& noise) {
        const int position = static_cast<int>(text.size());
        const bool proposes_choice = noise.At(position + 1)[0] > noise.At(position + 1)[1];
        return First(SortedByScore(models.p(text), noise.At(position)), proposes_choice ? 1 : 0);
      }),
      // Chance of its own; siblings may repeat.
      [](const Models&, const Text&, Noise&, Outcomes& outcomes) {
        const double even[kVocabulary] = {1, 1, 1};
        speculation::TokenTree tree = speculation::TokenTree::Root(0);
        tree.Add(0, outcomes.Choose(even), 0.0f);
        tree.Add(0, outcomes.Choose(even), 0.0f);
        return tree;
      },
  };
  return *drafters;
}

std::vector<double> GeneratedDistribution(const Models& models, const NoiseDistribution& noise,
                                          const CoupledDrafter& drafter,
                                          const Positions& positions) {
  return GeneratedDistribution(noise, [&](const Text& text, Noise& drawn, Outcomes& outcomes) {
    return CoupledRound(models, drafter, positions, text, drawn, outcomes);
  });
}

TEST(CoupledDistributionTest, AnyDraftGivesTheDistributionOfPlainSampling) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    const Models models{ToyPair(seed, kVocabulary, 3, 0.1 * (seed - 1))};
    const NoiseDistribution noise = RandomNoiseDistribution(seed);
    const std::vector<double> plain = PlainDistribution(models, noise);
    for (size_t i = 0; i < Drafters().size(); ++i) {
      EXPECT_LE(Error(GeneratedDistribution(models, noise, Drafters()[i], Straight), plain), 1e-12)
          << "drafter " << i << ", seed " << seed;
    }
  }
}

TEST(CoupledDistributionTest, NoiseAtTheWrongPositionIsCaught) {
  // One vector for all depths of a round; and rounds that start at the position before theirs.
  const Positions broken[] = {[](int base, int) { return base; },
                              [](int base, int depth) { return std::max(0, base - 1) + depth; }};
  const Models models{ToyPair(1, kVocabulary, 3, 0)};
  const NoiseDistribution noise = RandomNoiseDistribution(1);
  const std::vector<double> plain = PlainDistribution(models, noise);
  for (const Positions& positions : broken) {
    EXPECT_GT(Error(GeneratedDistribution(models, noise, Drafters()[1], positions), plain), 1e-6);
  }
}

// --- Methods that change from round to round -----------------------------------------------------

// Whether the round after `text` is coupled. `accepted`: draft tokens, in the round before; -1:
// there was none.
using Choice = std::function<bool(const Text& text, int accepted, Noise&)>;

double ErrorOfMixed(uint32_t seed, const Verifier& other, const Choice& is_coupled) {
  const Models models{ToyPair(seed, kVocabulary, 3, 0.1 * (seed - 1))};
  const NoiseDistribution noise = RandomNoiseDistribution(seed);
  int accepted = -1;
  const auto mixed = [&](const Text& text, Noise& drawn, Outcomes& outcomes) {
    if (text.empty()) accepted = -1;
    const auto result = is_coupled(text, accepted, drawn)
                            ? CoupledRound(models, Drafters()[1], Straight, text, drawn, outcomes)
                            : SampledRound(models, noise, other, text, outcomes);
    accepted = static_cast<int>(result.path.size());
    return result;
  };
  return Error(GeneratedDistribution(noise, mixed), PlainDistribution(models, noise));
}

TEST(MixedMethodsTest, AnyChoiceByThePastKeepsTheDistribution) {
  const Choice choices[] = {
      [](const Text& text, int, Noise&) { return text.empty(); },
      [](const Text& text, int, Noise&) { return !text.empty(); },
      [](const Text& text, int, Noise&) { return !text.empty() && text.back() == 0; },
      [](const Text&, int accepted, Noise&) { return accepted == 0; },
      [](const Text& text, int accepted, Noise&) { return accepted > 0 || text.empty(); },
  };
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    for (size_t i = 0; i < std::size(choices); ++i) {
      EXPECT_LE(ErrorOfMixed(seed, AcceptByRejection, choices[i]), 1e-12) << "choice " << i;
      EXPECT_LE(ErrorOfMixed(seed, AcceptByTraversal, choices[i]), 1e-12) << "choice " << i;
    }
  }
}

TEST(MixedMethodsTest, AChoiceByTheNoiseToComeIsCaught) {
  const auto foresees = [](const Text& text, int, Noise& noise) {
    const std::vector<double>& g = noise.At(static_cast<int>(text.size()));
    return g[0] > g[1];
  };
  EXPECT_GT(ErrorOfMixed(1, AcceptByTraversal, foresees), 1e-6);
}

}  // namespace
}  // namespace specfabric::verification
