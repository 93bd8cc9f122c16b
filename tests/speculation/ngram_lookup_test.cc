#include "speculation/ngram_lookup.h"

#include <cmath>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::speculation {
namespace {

using base::TokenId;
using testing::ElementsAre;

NgramLookup Of(const std::vector<TokenId>& text, const NgramLookupOptions& options = {}) {
  NgramLookup ngram_lookup(options);
  ngram_lookup.Append(text);
  return ngram_lookup;
}

// The score of each path below the root, a path being the tokens from the root on.
std::map<std::vector<TokenId>, float> Paths(const TokenTree& tree) {
  std::vector<std::vector<TokenId>> path(tree.size());
  std::map<std::vector<TokenId>, float> paths;
  for (int node = 1; node < tree.size(); ++node) {
    path[node] = path[tree.parents[node]];
    path[node].push_back(tree.tokens[node]);
    EXPECT_TRUE(paths.emplace(path[node], tree.scores[node]).second) << "a path twice";
  }
  return paths;
}

// The same by trying every position of the text, directly from the header's definition.
std::map<std::vector<TokenId>, float> BruteForce(const std::vector<TokenId>& text, int max_depth,
                                                 const NgramLookupOptions& options) {
  const int size = static_cast<int>(text.size());
  std::map<std::vector<TokenId>, double> through = {{{}, 0.0}};
  int looked = 0;
  for (int at = size - 1; at >= options.min_match && looked < options.candidates; --at) {
    int length = 0;
    while (length < at && text[at - length - 1] == text[size - length - 1]) ++length;
    if (length < options.min_match) continue;
    ++looked;
    const double weight = std::pow(2, std::min(length, options.max_match) - options.min_match);
    std::vector<TokenId> extended = text, path;
    through[path] += weight;
    for (int depth = 0; depth < max_depth; ++depth) {
      path.push_back(extended[at + depth]);
      extended.push_back(path.back());
      through[path] += weight;
    }
  }
  std::map<std::vector<TokenId>, float> scores;
  for (const auto& [path, weight] : through) {
    if (path.empty()) continue;
    const std::vector<TokenId> parent(path.begin(), path.end() - 1);
    const double longer = std::pow(2, parent.size());
    scores[path] =
        static_cast<float>(std::log(weight * longer / (1 + through.at(parent) * longer)));
  }
  return scores;
}

TEST(NgramLookupTest, ProposesNothingWithoutAnEarlierMatch) {
  EXPECT_EQ(Of({7}).Propose(8, 8).size(), 1);
  EXPECT_EQ(Of({1, 2, 3, 4, 5, 6}).Propose(8, 8).size(), 1);
  EXPECT_EQ(Of({1, 2, 9, 1, 2}).Propose(8, 8).size(), 1) << "two tokens, three must agree";
}

TEST(NgramLookupTest, ProposesWhatFollowedTheMatch) {
  const TokenTree tree = Of({1, 2, 3, 4, 5, 6, 9, 1, 2, 3}).Propose(3, 8);
  EXPECT_THAT(tree.tokens, ElementsAre(3, 4, 5, 6));
  EXPECT_THAT(tree.parents, ElementsAre(-1, 0, 1, 2));
  EXPECT_FLOAT_EQ(tree.scores[1], std::log(1.0f / 2));
  EXPECT_FLOAT_EQ(tree.scores[2], std::log(2.0f / 3));
}

TEST(NgramLookupTest, ARepetitionIsProposedToGoOn) {
  EXPECT_THAT(Of({1, 2, 1, 2, 1, 2}, {.min_match = 2, .candidates = 1}).Propose(5, 5).tokens,
              ElementsAre(2, 1, 2, 1, 2, 1));
  EXPECT_THAT(Of({4, 4, 4, 4}).Propose(4, 8).tokens, ElementsAre(4, 4, 4, 4, 4));
}

TEST(NgramLookupTest, LongerAndMoreFrequentMatchesComeFirst) {
  // 1 2 3 was followed by 5 twice; 9 1 2 3, the present end of the text, by 6.
  const TokenTree more = Of({1, 2, 3, 5, 1, 2, 3, 5, 8, 1, 2, 3, 6, 7, 1, 2, 3}).Propose(2, 1);
  EXPECT_THAT(more.tokens, ElementsAre(3, 5, 6));
  const TokenTree longer =
      Of({1, 2, 3, 5, 1, 2, 3, 5, 8, 9, 0, 1, 2, 3, 6, 7, 9, 0, 1, 2, 3}).Propose(2, 1);
  EXPECT_THAT(longer.tokens, ElementsAre(3, 6, 5));
  EXPECT_GT(longer.scores[1], longer.scores[2]);
}

TEST(NgramLookupTest, EqualsTryingEveryPosition) {
  std::mt19937 random(7);
  int proposed = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const int alphabet = 1 + static_cast<int>(random() % 4);
    NgramLookupOptions options;
    options.min_match = 1 + static_cast<int>(random() % 4);
    options.max_match = options.min_match + static_cast<int>(random() % 6);
    options.candidates = 1 + static_cast<int>(random() % 8);
    std::vector<TokenId> text;
    for (int size = 1 + static_cast<int>(random() % 40); size > 0; --size) {
      text.push_back(static_cast<TokenId>(random() % alphabet));
    }
    const int depth = 1 + static_cast<int>(random() % 5);
    const auto wanted = BruteForce(text, depth, options);
    const auto found = Paths(Of(text, options).Propose(kMaxDraftNodes, depth));
    ASSERT_EQ(found.size(), wanted.size());
    for (const auto& [path, score] : wanted) {
      ASSERT_TRUE(found.contains(path));
      ASSERT_NEAR(found.at(path), score, 1e-5);
    }
    proposed += wanted.empty() ? 0 : 1;
  }
  EXPECT_GT(proposed, 1000);
}

TEST(NgramLookupTest, FewerNodesAreTheHighestScored) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<TokenId> text;
    for (int i = 0; i < 60; ++i) text.push_back(static_cast<TokenId>(random() % 3));
    const NgramLookup ngram_lookup = Of(text);
    const int nodes = 1 + static_cast<int>(random() % 20);
    const TokenTree few = ngram_lookup.Propose(nodes, 6),
                    all = ngram_lookup.Propose(kMaxDraftNodes, 6);
    ASSERT_TRUE(Validate(few, nodes + 1, 3).ok());
    ASSERT_EQ(few.size(), std::min(nodes + 1, all.size()));
    // Growth is best-first: further nodes would have been appended.
    for (int node = 0; node < few.size(); ++node) {
      ASSERT_EQ(few.tokens[node], all.tokens[node]);
      ASSERT_EQ(few.parents[node], all.parents[node]);
    }
  }
}

TEST(NgramLookupTest, TruncateEqualsTheShorterText) {
  std::mt19937 random(13);
  for (int trial = 0; trial < 300; ++trial) {
    NgramLookup ngram_lookup({.min_match = 2});
    std::vector<TokenId> text;
    for (int change = 0; change < 12; ++change) {
      if (random() % 3 == 0) {
        text.resize(random() % (text.size() + 1));
        ngram_lookup.Truncate(static_cast<int32_t>(text.size()));
      }
      for (int i = 0; i < 6; ++i) {
        text.push_back(static_cast<TokenId>(random() % 3));
        ngram_lookup.Append(text.back());
      }
      ASSERT_EQ(ngram_lookup.tokens(), text);
      const TokenTree found = ngram_lookup.Propose(16, 4);
      const TokenTree wanted = Of(text, {.min_match = 2}).Propose(16, 4);
      ASSERT_EQ(found.tokens, wanted.tokens);
      ASSERT_EQ(found.parents, wanted.parents);
      ASSERT_EQ(found.scores, wanted.scores);
    }
  }
}

// Scores are estimates of probabilities: in a text where a token usually follows from the three
// before it, nodes with high scores are accepted often.
TEST(NgramLookupTest, HighScoresAreOftenAccepted) {
  std::mt19937 random(17);
  NgramLookup ngram_lookup;
  std::vector<TokenId> text = {0, 1, 2};
  ngram_lookup.Append(text);
  int sure = 0, right = 0, unsure = 0, right_unsure = 0;
  for (int i = 0; i < 20000; ++i) {
    const size_t n = text.size();
    const TokenId usual = (text[n - 1] * 7 + text[n - 2] * 3 + text[n - 3] + 1) % 16;
    const TokenId next = random() % 10 < 9 ? usual : static_cast<TokenId>(random() % 16);
    const TokenTree tree = ngram_lookup.Propose(4, 1);
    for (int node = 1; node < tree.size(); ++node) {
      const bool hit = tree.tokens[node] == next;
      const float chance = std::exp(tree.scores[node]);
      if (chance > 0.8f) sure += 1, right += hit;
      if (chance < 0.3f) unsure += 1, right_unsure += hit;
    }
    text.push_back(next);
    ngram_lookup.Append(next);
  }
  EXPECT_GT(sure, 1000);
  EXPECT_GT(right, 0.75 * sure);
  EXPECT_LT(right_unsure, 0.3 * unsure);
}

}  // namespace
}  // namespace specfabric::speculation
