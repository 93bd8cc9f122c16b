// The two claims of coupled verification: the text is a function of the target and the seed alone,
// whatever the drafts do, and its distribution is the target's own. Each check is also run on
// something broken on purpose, which it must catch.

#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "base/hash.h"
#include "gtest/gtest.h"
#include "sampling/gumbel.h"
#include "sampling/philox.h"
#include "sampling/sampling.h"
#include "speculation/tree.h"

namespace specfabric::verification {
namespace {

using base::SamplingParams;
using base::TokenId;
using Text = std::vector<TokenId>;

// A "language model" whose logits are a function of the prefix.
struct FakeModel {
  uint64_t salt;
  int vocabulary;
  float spread;

  std::vector<float> Logits(const Text& prefix) const {
    const uint64_t hash = base::ExtendPrefixHash(salt, prefix);
    std::vector<float> logits(vocabulary);
    for (int i = 0; i < vocabulary; ++i) {
      const uint64_t bits = base::Mix64(hash + i);
      logits[i] = spread * (static_cast<float>(bits >> 40) * 0x1p-24f - 0.5f);
    }
    return logits;
  }
};

std::vector<float> Noise(uint64_t seed, size_t position, int vocabulary) {
  std::vector<float> noise(vocabulary);
  sampling::GumbelNoise(seed, static_cast<uint32_t>(position), 0, absl::MakeSpan(noise));
  return noise;
}

TokenId NextToken(const FakeModel& model, const Text& prefix, const SamplingParams& sampling) {
  return sampling::SampleRow(model.Logits(prefix),
                             Noise(sampling.seed, prefix.size(), model.vocabulary), sampling);
}

Text PlainText(const FakeModel& target, Text text, const SamplingParams& sampling, size_t length) {
  while (text.size() < length) text.push_back(NextToken(target, text, sampling));
  return text;
}

using Walker = std::function<speculation::Accepted(const speculation::TokenTree&,
                                                   const std::vector<TokenId>&)>;
using Drafter = std::function<speculation::TokenTree(const Text&)>;

Text SpeculativeText(const FakeModel& target, Text text, const SamplingParams& sampling,
                     size_t length, const Drafter& drafter, const Walker& walker) {
  while (text.size() < length) {
    const speculation::TokenTree tree = drafter(text);
    std::vector<Text> prefixes = {text};
    std::vector<TokenId> chosen;
    for (int node = 0; node < tree.size(); ++node) {
      if (node > 0) {
        prefixes.push_back(prefixes[tree.parents[node]]);
        prefixes.back().push_back(tree.tokens[node]);
      }
      chosen.push_back(NextToken(target, prefixes[node], sampling));
    }
    const speculation::Accepted accepted = walker(tree, chosen);
    text.insert(text.end(), accepted.tokens.begin(), accepted.tokens.end());
  }
  text.resize(length);
  return text;
}

speculation::TokenTree RandomTree(std::mt19937* random, TokenId root, int vocabulary) {
  speculation::TokenTree tree = speculation::TokenTree::Root(root);
  const int nodes = 1 + (*random)() % 20;
  while (tree.size() < nodes) {
    tree.Add((*random)() % tree.size(), (*random)() % vocabulary, 0.0f);
  }
  return tree;
}

// A draft that knows the target's own choices and leads next to them: for every right token a
// wrong sibling drawn before it, a duplicate after it, and the true continuation below a wrong
// node.
speculation::TokenTree AdversarialTree(const FakeModel& target, const Text& text,
                                       const SamplingParams& sampling) {
  speculation::TokenTree tree = speculation::TokenTree::Root(text.back());
  Text truth = text;
  int parent = 0;
  for (int depth = 0; depth < 4; ++depth) {
    const TokenId right = NextToken(target, truth, sampling);
    const TokenId wrong = (right + 1) % target.vocabulary;
    truth.push_back(right);
    const int decoy = tree.Add(parent, wrong, 0.0f);
    tree.Add(decoy, NextToken(target, truth, sampling), 0.0f);
    const int next = tree.Add(parent, right, 0.0f);
    tree.Add(parent, right, 0.0f);
    parent = next;
  }
  return tree;
}

// Gumbel top-k children of a related model, as a real draft grows them.
speculation::TokenTree CoupledDraft(const FakeModel& draft, const Text& text,
                                    const SamplingParams& sampling, int width, int depth) {
  speculation::TokenTree tree = speculation::TokenTree::Root(text.back());
  std::vector<Text> prefixes = {text};
  std::vector<int> level = {0};
  for (int d = 0; d < depth; ++d) {
    std::vector<int> next;
    for (int node : level) {
      const Text prefix = prefixes[node];
      for (const sampling::ScoredToken& child : sampling::PerturbedTopK(
               draft.Logits(prefix), Noise(sampling.seed, prefix.size(), draft.vocabulary),
               sampling.temperature, width)) {
        next.push_back(tree.Add(node, child.token, 0.0f));
        prefixes.push_back(prefix);
        prefixes.back().push_back(child.token);
      }
    }
    level = next;
  }
  return tree;
}

const std::vector<SamplingParams> kSamplings = {
    {.temperature = 0.0f},
    {.temperature = 1.0f},
    {.temperature = 0.7f, .top_k = 3},
    {.temperature = 1.3f, .top_p = 0.8f},
    {.temperature = 1.0f, .top_k = 5, .top_p = 0.9f, .min_p = 0.05f}};

// How many of `trials` texts differ from the plain ones under this walker.
int DifferingTexts(const Walker& walker, int trials) {
  std::mt19937 random(11);
  int differing = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const FakeModel target{random(), trial % 2 == 0 ? 4 : 50, 6.0f};
    const FakeModel draft{random(), target.vocabulary, 6.0f};
    SamplingParams sampling = kSamplings[trial % kSamplings.size()];
    sampling.seed = random();
    const Text prompt = {static_cast<TokenId>(random() % 4), 1};
    const Text plain = PlainText(target, prompt, sampling, 40);
    const std::vector<Drafter> drafters = {
        [&](const Text& text) { return RandomTree(&random, text.back(), target.vocabulary); },
        [&](const Text& text) { return AdversarialTree(target, text, sampling); },
        [&](const Text& text) { return CoupledDraft(draft, text, sampling, 2, 3); },
        [&](const Text& text) { return CoupledDraft(target, text, sampling, 1, 5); },
        [&](const Text& text) { return speculation::TokenTree::Root(text.back()); }};
    for (const Drafter& drafter : drafters) {
      if (SpeculativeText(target, prompt, sampling, 40, drafter, walker) != plain) ++differing;
    }
  }
  return differing;
}

TEST(CoupledTest, TextIsAFunctionOfTargetAndSeedForAnyDraft) {
  EXPECT_EQ(DifferingTexts(speculation::WalkCoupled, 300), 0);
}

TEST(CoupledTest, APerfectDraftIsAcceptedWhole) {
  const FakeModel target{1, 50, 6.0f};
  const SamplingParams sampling{.seed = 3};
  const speculation::TokenTree tree = CoupledDraft(target, {1, 2}, sampling, 1, 5);
  std::vector<TokenId> chosen;
  Text prefix = {1, 2};
  for (int node = 0; node < tree.size(); ++node) {
    if (node > 0) prefix.push_back(tree.tokens[node]);
    chosen.push_back(NextToken(target, prefix, sampling));
  }
  EXPECT_EQ(speculation::WalkCoupled(tree, chosen).path.size(), 5u);
}

// Broken on purpose, each in a way that a hurried change could bring about.
TEST(CoupledTest, BrokenWalkersAreCaught) {
  // Takes the last node of the tree that carries the choice, whoever its parent is.
  const Walker any_parent = [](const speculation::TokenTree& tree,
                               const std::vector<TokenId>& chosen) {
    speculation::Accepted accepted;
    int node = 0;
    while (true) {
      accepted.tokens.push_back(chosen[node]);
      int child = -1;
      for (int i = node + 1; i < tree.size(); ++i) {
        if (tree.tokens[i] == chosen[node]) child = i;
      }
      if (child < 0) return accepted;
      accepted.path.push_back(child);
      node = child;
    }
  };
  // Emits the child's token instead of the target's choice where its score was close.
  const Walker trusts_the_draft = [](const speculation::TokenTree& tree,
                                     const std::vector<TokenId>& chosen) {
    speculation::Accepted accepted = speculation::WalkCoupled(tree, chosen);
    const int last = accepted.path.empty() ? 0 : accepted.path.back();
    for (int i = last + 1; i < tree.size(); ++i) {
      if (tree.parents[i] == last && std::abs(tree.tokens[i] - chosen[last]) == 1) {
        accepted.tokens.back() = tree.tokens[i];
        break;
      }
    }
    return accepted;
  };
  // Takes the bonus token from the root instead of from the last accepted node.
  const Walker stale_bonus = [](const speculation::TokenTree& tree,
                                const std::vector<TokenId>& chosen) {
    speculation::Accepted accepted = speculation::WalkCoupled(tree, chosen);
    accepted.tokens.back() = chosen[0];
    return accepted;
  };
  EXPECT_GT(DifferingTexts(any_parent, 20), 0);
  EXPECT_GT(DifferingTexts(trusts_the_draft, 20), 0);
  EXPECT_GT(DifferingTexts(stale_bonus, 20), 0);
}

// --- The distribution
// ------------------------------------------------------------------------------------

// The probabilities of the filtered softmax, straight from the definition.
std::vector<double> FilteredSoftmax(const std::vector<float>& logits,
                                    const SamplingParams& sampling) {
  const std::vector<uint8_t> mask = sampling::FilterMask(logits, sampling);
  std::vector<double> p(logits.size(), 0.0);
  double total = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (mask[i]) total += p[i] = std::exp(double{logits[i]} / sampling.temperature);
  }
  for (double& x : p) x /= total;
  return p;
}

// A bound that Pearson's statistic passes once in 3.5 million (five sigma) under the distribution,
// by the approximation of Wilson and Hilferty.
double ChiSquareBound(int degrees) {
  const double k = 2.0 / (9.0 * degrees);
  return degrees * std::pow(1 - k + 5 * std::sqrt(k), 3);
}

struct Fit {
  double statistic = 0;
  int degrees = -1;
  bool impossible = false;  // something of probability zero was seen
  bool Good() const { return !impossible && statistic < ChiSquareBound(std::max(1, degrees)); }
};

// Outcomes expected less than ten times are put together.
Fit Compare(const std::vector<int>& counts, const std::vector<double>& p) {
  double n = 0;
  for (int count : counts) n += count;
  Fit fit;
  double rare_count = 0, rare_expected = 0;
  const auto add = [&](double count, double expected) {
    fit.statistic += (count - expected) * (count - expected) / expected;
    ++fit.degrees;
  };
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0 && counts[i] > 0) fit.impossible = true;
    if (p[i] == 0) continue;
    if (n * p[i] >= 10) {
      add(counts[i], n * p[i]);
    } else {
      rare_count += counts[i];
      rare_expected += n * p[i];
    }
  }
  if (rare_expected >= 1) add(rare_count, rare_expected);
  return fit;
}

TEST(DistributionTest, SampleRowFollowsTheFilteredSoftmax) {
  const FakeModel model{5, 24, 8.0f};
  for (const SamplingParams& base_sampling : kSamplings) {
    if (base_sampling.greedy()) continue;
    const std::vector<float> logits = model.Logits({1, 2, 3});
    std::vector<int> counts(24, 0);
    for (int draw = 0; draw < 200'000; ++draw) {
      SamplingParams sampling = base_sampling;
      sampling.seed = draw / 100;
      ++counts[sampling::SampleRow(logits, Noise(sampling.seed, draw % 100, 24), sampling)];
    }
    const Fit fit = Compare(counts, FilteredSoftmax(logits, base_sampling));
    EXPECT_TRUE(fit.Good()) << fit.statistic << " with " << fit.degrees << " degrees";
  }
}

TEST(DistributionTest, ASlightlyWrongTemperatureIsCaught) {
  const FakeModel model{5, 24, 8.0f};
  const std::vector<float> logits = model.Logits({1, 2, 3});
  std::vector<int> counts(24, 0);
  for (int draw = 0; draw < 200'000; ++draw) {
    ++counts[sampling::SampleRow(logits, Noise(draw / 100, draw % 100, 24),
                                 {.temperature = 1.03f})];
  }
  EXPECT_FALSE(Compare(counts, FilteredSoftmax(logits, {.temperature = 1.0f})).Good());
}

// Counts of three-token continuations, over seeds, of speculative sampling.
std::vector<int> Continuations(
    const FakeModel& target, const SamplingParams& base_sampling,
    const std::function<speculation::TokenTree(const Text&, const SamplingParams&)>& draft,
    bool reuse_noise) {
  const int v = target.vocabulary;
  std::vector<int> counts(v * v * v, 0);
  for (int seed = 0; seed < 60'000; ++seed) {
    SamplingParams sampling = base_sampling;
    sampling.seed = seed;
    const Text text =
        reuse_noise
            // Broken on purpose: every position draws with the noise of the first.
            ? [&] {
                Text broken = {0};
                while (broken.size() < 4) {
                  broken.push_back(sampling::SampleRow(target.Logits(broken), Noise(seed, 1, v), sampling));
                }
                return broken;
              }()
            : SpeculativeText(target, {0}, sampling, 4,
                              [&](const Text& t) { return draft(t, sampling); }, speculation::WalkCoupled);
    ++counts[(text[1] * v + text[2]) * v + text[3]];
  }
  return counts;
}

std::vector<double> ContinuationDistribution(const FakeModel& target,
                                             const SamplingParams& sampling) {
  const int v = target.vocabulary;
  std::vector<double> distribution(v * v * v);
  const std::vector<double> first = FilteredSoftmax(target.Logits({0}), sampling);
  for (int a = 0; a < v; ++a) {
    const std::vector<double> second = FilteredSoftmax(target.Logits({0, a}), sampling);
    for (int b = 0; b < v; ++b) {
      const std::vector<double> third = FilteredSoftmax(target.Logits({0, a, b}), sampling);
      for (int c = 0; c < v; ++c)
        distribution[(a * v + b) * v + c] = first[a] * second[b] * third[c];
    }
  }
  return distribution;
}

TEST(DistributionTest, SpeculativeTextHasTheTargetJointDistribution) {
  const FakeModel target{21, 3, 3.0f}, draft{22, 3, 3.0f};
  for (const SamplingParams& sampling :
       {SamplingParams{.temperature = 1.0f}, SamplingParams{.temperature = 0.8f, .top_k = 2}}) {
    const std::vector<double> distribution = ContinuationDistribution(target, sampling);
    const Fit coupled = Compare(Continuations(
                                    target, sampling,
                                    [&](const Text& text, const SamplingParams& s) {
                                      return CoupledDraft(draft, text, s, 2, 2);
                                    },
                                    false),
                                distribution);
    EXPECT_TRUE(coupled.Good()) << coupled.statistic << " with " << coupled.degrees;
  }
}

TEST(DistributionTest, NoiseSharedByTwoPositionsIsCaught) {
  const FakeModel target{21, 3, 3.0f};
  const SamplingParams sampling{.temperature = 1.0f};
  EXPECT_FALSE(Compare(Continuations(target, sampling, nullptr, true),
                       ContinuationDistribution(target, sampling))
                   .Good());
}

// --- Agreement ----------------------------------------------------------------------------------

TEST(AgreementTest, FirstChildIsTheTargetsChoiceAtLeastAsOftenAsTheBound) {
  std::mt19937 random(31);
  std::normal_distribution<float> normal;
  for (float difference : {0.0f, 0.3f, 0.8f, 1.5f}) {
    const int v = 200;
    std::vector<float> p_logits(v), q_logits(v);
    for (int i = 0; i < v; ++i) {
      p_logits[i] = 2 * normal(random);
      q_logits[i] = p_logits[i] + difference * normal(random);
    }
    const std::vector<double> p = FilteredSoftmax(p_logits, {}), q = FilteredSoftmax(q_logits, {});
    double overlap = 0;
    for (int i = 0; i < v; ++i) overlap += std::min(p[i], q[i]);
    const double tv = 1 - overlap;
    constexpr int kDraws = 20'000;
    int first = 0, second = 0;
    for (int draw = 0; draw < kDraws; ++draw) {
      const std::vector<float> noise = Noise(draw, 0, v);
      const TokenId choice = sampling::PerturbedArgMax(p_logits, noise, 1.0f, 0).token;
      const auto children = sampling::PerturbedTopK(q_logits, noise, 1.0f, 2);
      first += children[0].token == choice;
      second += children[1].token == choice;
    }
    const double rate = static_cast<double>(first) / kDraws;
    const double bound = (1 - tv) / (1 + tv);
    const double sigma = std::sqrt(0.25 / kDraws);
    EXPECT_GE(rate, bound - 5 * sigma) << "TV " << tv;
    // No verification method can exceed the overlap with one child; a second child adds to the
    // first.
    EXPECT_LE(rate, 1 - tv + 5 * sigma) << "TV " << tv;
    EXPECT_EQ(second > 0, difference > 0);
    EXPECT_EQ(first == kDraws, difference == 0);
  }
}

}  // namespace
}  // namespace specfabric::verification
