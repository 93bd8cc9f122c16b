#include "sampling/logit_changer.h"

#include <cmath>
#include <limits>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "speculation/tree.h"

namespace specfabric::sampling {
namespace {

using base::LogitBias;
using base::LogitRules;
using base::TokenId;
using testing::ElementsAre;
using Ids = std::vector<TokenId>;

constexpr int kVocabulary = 50;

Ids RandomIds(std::mt19937* random, int count) {
  Ids ids(count);
  for (TokenId& id : ids) id = static_cast<TokenId>((*random)() % kVocabulary);
  return ids;
}

std::vector<float> RandomRow(std::mt19937* random) {
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> row(kVocabulary);
  for (float& logit : row) logit = normal(*random);
  return row;
}

// Each kind of rule present in about half of them.
LogitRules RandomRules(std::mt19937* random) {
  const auto coin = [&] { return (*random)() % 2 == 0; };
  std::uniform_real_distribution<float> penalty(-2, 2), repetition(0.2f, 3), bias(-100, 100);
  LogitRules rules;
  if (coin()) rules.presence_penalty = penalty(*random);
  if (coin()) rules.frequency_penalty = penalty(*random);
  if (coin()) rules.repetition_penalty = repetition(*random);
  if (coin()) rules.bias = {{3, bias(*random)}, {17, bias(*random)}, {49, bias(*random)}};
  if (coin()) {
    rules.min_tokens = static_cast<int32_t>((*random)() % 12);
    rules.suppressed_token_ids = {0, 17, 30};
  }
  rules.masked = coin();
  return rules;
}

// Of few tokens, so that those of them that are suppressed are now and then all.
std::vector<bool> RandomAllowed(std::mt19937* random) {
  std::vector<bool> allowed(kVocabulary);
  for (int i = 0; i < 3; ++i) {
    const uint32_t choice = (*random)() % 3;
    allowed[choice == 0 ? 0 : choice == 1 ? 17 : (*random)() % kVocabulary] = true;
  }
  return allowed;
}

std::vector<uint32_t> MaskOf(const std::vector<bool>& allowed) {
  std::vector<uint32_t> mask((allowed.size() + 31) / 32);
  for (size_t i = 0; i < allowed.size(); ++i) mask[i / 32] |= uint32_t{allowed[i]} << (i % 32);
  return mask;
}

TokenCounts CountsOf(const LogitRules& rules, const Ids& prompt, const Ids& output) {
  TokenCounts counts;
  if (rules.counts_prompt()) {
    for (TokenId token : prompt) counts.AddPrompt(token);
  }
  for (TokenId token : output) counts.AddOutput(token);
  return counts;
}

Ids PathTo(const speculation::TokenTree& tree, int node) {
  Ids path;
  for (; node != 0; node = tree.parents[node]) path.insert(path.begin(), tree.tokens[node]);
  return path;
}

TEST(TokenCountsTest, CountsTheOutputAndNotesThePrompt) {
  TokenCounts counts;
  counts.AddPrompt(5);
  counts.AddPrompt(5);
  counts.AddOutput(9);
  counts.AddOutput(5);
  counts.AddOutput(9);
  EXPECT_THAT(counts.list(), ElementsAre(TokenCount{5, 1}, TokenCount{9, 2}));
}

TEST(LogitChangerTest, EqualsTheReferenceAtEveryNodeOfATree) {
  LogitChanger changer(kVocabulary);
  for (int seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const LogitRules rules = RandomRules(&random);
    const Ids prompt = RandomIds(&random, 1 + random() % 20);
    const Ids output = RandomIds(&random, random() % 20);
    speculation::TokenTree tree = speculation::TokenTree::Root(7);
    // Few different tokens, so that branches repeat one another's and the text's.
    for (int i = 1; i < 30; ++i) {
      tree.Add(static_cast<int>(random() % i), static_cast<TokenId>(random() % 8), 0.0f);
    }
    const TokenCounts counts = CountsOf(rules, prompt, output);
    changer.Open(rules, counts.list());
    for (int node = 0; node < tree.size(); ++node) {
      const std::vector<float> row = RandomRow(&random);
      const Ids path = PathTo(tree, node);
      Ids text = output;
      text.insert(text.end(), path.begin(), path.end());
      const std::vector<bool> allowed = rules.masked ? RandomAllowed(&random) : std::vector<bool>();
      const std::vector<uint32_t> mask = MaskOf(allowed);
      const auto changed = changer.Change(row, path, static_cast<int32_t>(text.size()), mask);
      const auto expected = ChangedLogitsReference(row, rules, prompt, text, allowed);
      for (int i = 0; i < kVocabulary; ++i) {
        if (std::isinf(expected[i])) {
          ASSERT_EQ(changed[i], expected[i]) << "seed " << seed << " node " << node;
        } else {
          ASSERT_NEAR(changed[i], expected[i], 1e-4) << "seed " << seed << " node " << node;
        }
      }
    }
  }
}

// Else the text would depend on how many draft tokens were accepted at once.
TEST(LogitChangerTest, DoesNotDependOnWhereTheCommittedTextEnds) {
  std::mt19937 random(4);
  const LogitRules rules{.presence_penalty = 0.7f,
                         .frequency_penalty = 0.3f,
                         .repetition_penalty = 1.3f,
                         .bias = {{2, 1.7f}}};
  const Ids prompt = RandomIds(&random, 10), output = {1, 2, 3, 2, 2, 9, 1};
  const std::vector<float> row = RandomRow(&random);
  LogitChanger changer(kVocabulary);
  std::vector<std::vector<float>> results;
  for (size_t cut = 0; cut <= output.size(); ++cut) {
    const Ids committed(output.begin(), output.begin() + cut);
    const Ids path(output.begin() + cut, output.end());
    const TokenCounts counts = CountsOf(rules, prompt, committed);
    changer.Open(rules, counts.list());
    const auto changed = changer.Change(row, path, static_cast<int32_t>(output.size()));
    results.emplace_back(changed.begin(), changed.end());
    EXPECT_EQ(results.back(), results.front()) << "cut at " << cut;
  }
}

TEST(ChangedLogitsReferenceTest, KnownAnswers) {
  const std::vector<float> row = {4, -4, 4, -4, 4, 0};
  // 0 and 1 are in the prompt, 2 once and 3 twice in the output.
  const Ids prompt = {0, 1}, output = {2, 3, 3};
  EXPECT_THAT(ChangedLogitsReference(row, {.repetition_penalty = 2}, prompt, output),
              ElementsAre(2, -8, 2, -8, 4, 0));
  EXPECT_THAT(ChangedLogitsReference(row, {.presence_penalty = 1}, prompt, output),
              ElementsAre(4, -4, 3, -5, 4, 0));
  EXPECT_THAT(ChangedLogitsReference(row, {.frequency_penalty = 0.5f}, prompt, output),
              ElementsAre(4, -4, 3.5, -5, 4, 0));
  // The bias comes before the repetition penalty.
  EXPECT_THAT(
      ChangedLogitsReference(row, {.repetition_penalty = 2, .bias = {{1, 6}, {5, -3}}}, prompt, {}),
      ElementsAre(2, 1, 4, -4, 4, -3));
  const double never = std::numeric_limits<float>::lowest();
  const LogitRules longer{.min_tokens = 4, .suppressed_token_ids = {4}},
      reached{.min_tokens = 3, .suppressed_token_ids = {4}};
  EXPECT_THAT(ChangedLogitsReference(row, longer, prompt, output),
              ElementsAre(4, -4, 4, -4, never, 0));
  EXPECT_THAT(ChangedLogitsReference(row, reached, prompt, output),
              ElementsAre(4, -4, 4, -4, 4, 0));
}

TEST(LogitChangerTest, GrammarsComeBeforeSuppressedTokens) {
  const std::vector<float> row = {4, 5, 6, 7};
  const LogitRules rules{.min_tokens = 4, .suppressed_token_ids = {0, 3}, .masked = true};
  const double never = std::numeric_limits<float>::lowest();
  LogitChanger changer(4);
  changer.Open(rules, {});
  EXPECT_THAT(changer.Change(row, {}, 0, {0b1010u}), ElementsAre(never, 5, never, never));
  EXPECT_THAT(changer.Change(row, {}, 0, {0b1001u}), ElementsAre(4, never, never, 7));
  EXPECT_THAT(ChangedLogitsReference(row, rules, {}, {}, {false, true, false, true}),
              ElementsAre(never, 5, never, never));
  EXPECT_THAT(ChangedLogitsReference(row, rules, {}, {}, {true, false, false, true}),
              ElementsAre(4, never, never, 7));
}

// So that a broken model shows in changed rows as in others, and nothing else does.
TEST(LogitChangerTest, LogitsAreFiniteAfterwardsIfTheyWereBefore) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kMax = std::numeric_limits<float>::max();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const LogitRules rules{.presence_penalty = 2,
                         .frequency_penalty = -2,
                         .repetition_penalty = 1e-38f,
                         .bias = {{0, 100}, {1, -100}, {4, 100}, {5, -100}},
                         .min_tokens = 9,
                         .suppressed_token_ids = {2, 5, 6, 7}};
  const std::vector<float> row = {kMax, -kMax, 1, 1e30f, nan, kInf, -kInf, nan, 0};
  const std::vector<TokenCount> counts = {{0, 9}, {1, 9}, {3, 1}, {4, 1}, {5, 1}, {6, 1}};
  LogitChanger changer(static_cast<int32_t>(row.size()));
  changer.Open(rules, counts);
  const absl::Span<const float> changed = changer.Change(row, {}, 0);
  for (size_t i = 0; i < row.size(); ++i) {
    EXPECT_EQ(std::isfinite(changed[i]), std::isfinite(row[i])) << i;
  }
  EXPECT_EQ(changed[2], -kMax);
}

TEST(LogitRulesTest, SaysWhetherARowChanges) {
  EXPECT_FALSE(LogitRules{}.ChangeAt(0));
  EXPECT_TRUE((LogitRules{.presence_penalty = 1}.ChangeAt(100)));
  EXPECT_TRUE((LogitRules{.bias = {{1, 1}}}.ChangeAt(100)));
  const LogitRules longer{.min_tokens = 3, .suppressed_token_ids = {1}};
  EXPECT_TRUE(longer.ChangeAt(2));
  EXPECT_FALSE(longer.ChangeAt(3));
  EXPECT_TRUE((LogitRules{.masked = true}.ChangeAt(100)));
}

}  // namespace
}  // namespace specfabric::sampling
