#include "verification/cpu/tree_verifier.h"

#include <algorithm>
#include <atomic>
#include <boost/math/distributions/chi_squared.hpp>
#include <cmath>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "base/bfloat16.h"
#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sampling/draft_row.h"
#include "sampling/sampling.h"
#include "tests/verification/random_rounds.h"

namespace specfabric::verification {
namespace {

using base::SamplingParams;
using base::TokenId;
using sampling::Distribution;
using speculation::Accepted;
using speculation::SiblingDraw;
using speculation::VerificationMethod;

// --- A round, and the reference's view of it ----------------------------------------------------

Distribution TargetDistribution(const Logits& logits, const SamplingParams& sampling) {
  const std::vector<uint8_t> kept = sampling::FilterMask(logits, sampling);
  const double max = *std::max_element(logits.begin(), logits.end());
  Distribution distribution;
  for (size_t x = 0; x < logits.size(); ++x) {
    distribution.push_back(
        kept[x] ? std::exp((logits[x] - max) / static_cast<double>(sampling.temperature)) : 0);
  }
  return sampling::Normalized(distribution);
}

Accepted ByReference(const Case& round, const PhiloxRandomness& random) {
  VerifyInput input{.tree = round.tree,
                    .draw = round.draw,
                    .vocabulary = round.vocabulary(),
                    .p = {},
                    .q = {},
                    .q_row = round.row_of};
  for (const Logits& logits : round.logits) {
    const Distribution p = TargetDistribution(logits, round.sampling);
    input.p.insert(input.p.end(), p.begin(), p.end());
  }
  for (const ProbRow& draft_probs : round.rows) {
    const Distribution q = sampling::Probabilities(draft_probs);
    input.q.insert(input.q.end(), q.begin(), q.end());
  }
  const absl::Status valid = ValidateInput(round.verification, input);
  EXPECT_TRUE(valid.ok()) << valid;
  PhiloxRandomness philox = random;
  switch (round.verification) {
    case VerificationMethod::kRejection:
      return AcceptByRejection(input, philox);
    case VerificationMethod::kTraversal:
      return AcceptByTraversal(input, philox);
    case VerificationMethod::kTypical:
      return AcceptTypical(input, round.typical, philox);
    case VerificationMethod::kCoupled:
      break;
  }
  SPECFABRIC_CHECK(round.verification != VerificationMethod::kCoupled);
  return {};
}

// Lends each row once and spoils it at the next call, as a caller with one buffer does.
Accepted ByVerifier(const Case& round, const PhiloxRandomness& random, TreeVerifier* verifier,
                    int* rows_read = nullptr) {
  Logits lent;
  std::set<int> asked;
  const auto row = [&](int node) {
    EXPECT_TRUE(asked.insert(node).second) << "row " << node << " was asked for twice";
    lent = round.logits[node];
    return absl::MakeConstSpan(lent);
  };
  const Accepted accepted = Verify(round, random, row, verifier);
  if (rows_read != nullptr) *rows_read = static_cast<int>(asked.size());
  return accepted;
}

// --- Random rounds ------------------------------------------------------------------------------

struct Tally {
  int accepted = 0, rejected_siblings = 0, rounds = 0;
};

// Rounds of one shape by every rule, each equal to the reference's.
void ExpectTheReference(uint32_t seed, const Shape& shape, int rounds, Tally* tally) {
  std::mt19937 random(seed);
  TreeVerifier verifier(shape.vocabulary);
  for (int i = 0; i < rounds; ++i) {
    for (const Rule& rule : kRules) {
      const Case round =
          RandomCase(&random, rule.verification, rule.draw, shape, RandomSampling(&random));
      const PhiloxRandomness philox(seed, 9, static_cast<uint32_t>(i), round.tree);
      const Accepted reference = ByReference(round, philox);
      int rows_read = 0;
      const Accepted accepted = ByVerifier(round, philox, &verifier, &rows_read);
      ASSERT_EQ(accepted.path, reference.path)
          << Name(rule.verification) << " " << Name(rule.draw) << ", round " << i;
      ASSERT_EQ(accepted.tokens, reference.tokens)
          << Name(rule.verification) << " " << Name(rule.draw) << ", round " << i;
      if (rule.verification == VerificationMethod::kRejection) {
        ASSERT_EQ(rows_read, static_cast<int>(accepted.tokens.size()));
      }
      ++tally->rounds;
      tally->accepted += static_cast<int>(accepted.path.size());
      int last = accepted.path.empty() ? 0 : accepted.path.back();
      tally->rejected_siblings += static_cast<int>(Children(round.tree, last).size());
    }
  }
}

TEST(TreeVerifierTest, EqualsTheReferenceOnSmallVocabularies) {
  Tally tally;
  for (int vocabulary : {2, 3, 17}) {
    ExpectTheReference(1, {.vocabulary = vocabulary, .max_nodes = 12}, 500, &tally);
    ExpectTheReference(2, {.vocabulary = vocabulary, .max_nodes = 64}, 100, &tally);
    ExpectTheReference(3, {.vocabulary = vocabulary, .max_nodes = 12, .top_n = 2}, 300, &tally);
  }
  // The rounds decide something.
  EXPECT_GT(tally.accepted, tally.rounds / 2);
  EXPECT_GT(tally.rejected_siblings, tally.rounds / 2);
}

TEST(TreeVerifierTest, EqualsTheReferenceOnLargerVocabularies) {
  Tally tally;
  ExpectTheReference(4, {.vocabulary = 512, .max_nodes = 64}, 60, &tally);
  ExpectTheReference(5, {.vocabulary = 512, .max_nodes = 64, .top_n = 40}, 60, &tally);
  ExpectTheReference(6, {.vocabulary = 1025, .max_nodes = 20}, 40, &tally);
  ExpectTheReference(7, {.vocabulary = 4099, .max_nodes = 24}, 20, &tally);
  ExpectTheReference(8, {.vocabulary = 4099, .max_nodes = 24, .top_n = 64}, 20, &tally);
  EXPECT_GT(tally.accepted, tally.rounds / 2);
  EXPECT_GT(tally.rejected_siblings, tally.rounds / 2);
}

TEST(TreeVerifierTest, EveryInstructionSetAcceptsTheSame) {
  std::mt19937 random(10);
  for (base::Isa isa : {base::Isa::kAvx2, base::Isa::kAvx512}) {
    if (!base::Supported(isa)) continue;
    TreeVerifier portable(1025, base::Isa::kPortable), vectorised(1025, isa);
    for (uint32_t i = 0; i < 40; ++i) {
      for (const Rule& rule : kRules) {
        const Case round =
            RandomCase(&random, rule.verification, rule.draw, {.vocabulary = 1025, .max_nodes = 20},
                       RandomSampling(&random));
        const PhiloxRandomness philox(1, 9, i, round.tree);
        const Accepted a = ByVerifier(round, philox, &portable);
        const Accepted b = ByVerifier(round, philox, &vectorised);
        ASSERT_EQ(a.path, b.path);
        ASSERT_EQ(a.tokens, b.tokens);
      }
    }
  }
}

TEST(TreeVerifierTest, WithoutReplacementCountsTheLittleThatIsLeft) {
  // The first sibling has all but 2^-40 of the draft's mass: what is left must be added up anew.
  Case round{.verification = VerificationMethod::kRejection,
             .draw = SiblingDraw::kWithoutReplacement};
  const float little = 0x1p-40f;
  round.tree.Add(0, 0, 0.0f);
  round.tree.Add(0, 1, 0.0f);
  round.row_of = {0, 0, 0};
  round.logits.assign(3, {-2, 0.5f, 0, 1});
  round.rows = {{base::RoundToBFloat16(1), base::RoundToBFloat16(3 * little),
                 base::RoundToBFloat16(little), base::RoundToBFloat16(little)}};
  for (int top_n : {0, 3}) {
    round.top_n = top_n;
    if (top_n != 0) round.rows[0][3] = 0;
    TreeVerifier verifier(4);
    for (uint32_t draw = 0; draw < 500; ++draw) {
      const PhiloxRandomness philox(1, 9, draw, round.tree);
      const Accepted reference = ByReference(round, philox);
      const Accepted accepted = ByVerifier(round, philox, &verifier);
      ASSERT_EQ(accepted.path, reference.path);
      ASSERT_EQ(accepted.tokens, reference.tokens);
    }
  }
}

TEST(TreeVerifierTest, LogitsThatAreNotFiniteCountOnlyWhereTheyChooseAToken) {
  std::mt19937 random(11);
  int ended = 0, went_on = 0;
  for (const Shape& shape :
       {Shape{.vocabulary = 5, .max_nodes = 6}, Shape{.vocabulary = 17, .max_nodes = 40},
        Shape{.vocabulary = 40, .max_nodes = 24, .top_n = 6},
        Shape{.vocabulary = 1025, .max_nodes = 8}}) {
    TreeVerifier verifier(shape.vocabulary), wider(shape.vocabulary + 1);
    for (uint32_t draw = 0; draw < 100; ++draw) {
      for (const Rule& rule : kRules) {
        Case round =
            RandomCase(&random, rule.verification, rule.draw, shape, RandomSampling(&random));
        const PhiloxRandomness philox(1, 9, draw, round.tree);
        const std::vector<bool> spoilt = Spoil(&random, &round);
        const Accepted found = ByVerifier(round, philox, &verifier);
        const Case spared = WithSpareToken(round, spoilt);
        for (const Accepted& accepted :
             {ByReference(spared, philox), ByVerifier(spared, philox, &wider)}) {
          const Accepted expected = WithoutSpareToken(accepted, shape.vocabulary);
          ASSERT_EQ(found.path, expected.path) << Name(rule.verification) << " " << Name(rule.draw);
          ASSERT_EQ(found.tokens, expected.tokens) << Name(rule.verification);
          ASSERT_EQ(found.finite, expected.finite);
        }
        const int last = found.path.empty() ? 0 : found.path.back();
        ASSERT_EQ(found.finite, !spoilt[last]);
        const bool any = std::find(spoilt.begin(), spoilt.end(), true) != spoilt.end();
        ended += !found.finite;
        went_on += found.finite && any;
      }
    }
  }
  EXPECT_GT(ended, 500);
  EXPECT_GT(went_on, 500);
}

// --- Draft probabilities that their sender changes after they were validated ---------------------

// Whatever is there now, tokens are of the vocabulary, and the path is one of the tree.
void ExpectSound(const Case& round, const Accepted& accepted) {
  ASSERT_TRUE(accepted.finite);
  ASSERT_EQ(accepted.tokens.size(), accepted.path.size() + 1);
  for (size_t i = 0; i < accepted.path.size(); ++i) {
    ASSERT_EQ(accepted.tokens[i], round.tree.tokens[accepted.path[i]]);
  }
  ASSERT_GE(accepted.tokens.back(), 0);
  ASSERT_LT(accepted.tokens.back(), round.vocabulary());
}

// Ids out of range, in descending order, repeated; draft_probs that are no numbers, infinite,
// negative.
constexpr uint32_t kChanges[] = {0,          0xFFFFFFFFu, 0x7FFFFFFFu, 0x80000000u, 0x7F807F80u,
                                 0xFF80FF80, 0x7FC07FC0u, 0xBF80BF80u, 0x00000003u};

TEST(TreeVerifierTest, DraftProbabilitiesMayChangeAfterTheyWereValidated) {
  std::mt19937 random(13);
  for (const Shape& shape : {Shape{.vocabulary = 40, .max_nodes = 24, .top_n = 6},
                             Shape{.vocabulary = 3000, .max_nodes = 12, .top_n = 40},
                             Shape{.vocabulary = 40, .max_nodes = 24}}) {
    TreeVerifier verifier(shape.vocabulary);
    for (uint32_t draw = 0; draw < 40; ++draw) {
      for (const Rule& rule : kRules) {
        if (!speculation::NeedsDraftRows(rule.verification, rule.draw)) continue;
        const Case round =
            RandomCase(&random, rule.verification, rule.draw, shape, RandomSampling(&random));
        const PhiloxRandomness philox(1, 9, draw, round.tree);
        for (uint32_t change : kChanges) {
          for (int some : {1, 2, 5}) {
            Slot slot(round);
            for (uint32_t& word : slot.half_words()) word = random() % some == 0 ? change : word;
            ASSERT_NO_FATAL_FAILURE(ExpectSound(
                round, Verify(
                           round, philox,
                           [&](int node) { return absl::MakeConstSpan(round.logits[node]); }, &slot,
                           &verifier)));
          }
        }
      }
    }
  }
}

// The sender's writes are not of this program in earnest: a sanitizer must not tell of them.
__attribute__((no_sanitize("thread"))) void Overwrite(absl::Span<uint32_t> words, uint32_t change,
                                                      size_t first) {
  for (size_t i = first; i < words.size(); i += 3) {
    *const_cast<volatile uint32_t*>(&words[i]) = change + static_cast<uint32_t>(i);
  }
}

TEST(TreeVerifierTest, DraftProbabilitiesMayChangeWhileTheyAreRead) {
  std::mt19937 random(14);
  const Shape shape = {.vocabulary = 3000, .max_nodes = 12, .top_n = 400};
  TreeVerifier verifier(shape.vocabulary);
  for (const Rule& rule : kRules) {
    if (!speculation::NeedsDraftRows(rule.verification, rule.draw)) continue;
    const Case round = RandomCase(&random, rule.verification, rule.draw, shape, {});
    if (round.rows.empty()) continue;
    Slot slot(round);
    std::atomic<bool> stop{false};
    std::thread sender([&] {
      for (size_t i = 0; !stop; ++i) {
        Overwrite(slot.half_words(), kChanges[i % std::size(kChanges)], i % 3);
      }
    });
    for (uint32_t draw = 0; draw < 300; ++draw) {
      const PhiloxRandomness philox(1, 9, draw, round.tree);
      ExpectSound(round, Verify(
                             round, philox,
                             [&](int node) { return absl::MakeConstSpan(round.logits[node]); },
                             &slot, &verifier));
    }
    stop = true;
    sender.join();
  }
}

// --- The distribution
// ------------------------------------------------------------------------------------

// A target and a draft over four tokens: logits after the root, and after each first token.
struct Pair {
  explicit Pair(uint32_t seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 5; ++i) {
      target.push_back(RandomLogits(&random, 4, 1.2f));
      draft.push_back(Blurred(&random, target.back(), 1.0f));
    }
  }
  std::vector<Logits> target, draft;
};

// Two children of the root and of each of these, drawn as `draw` says.
Case DrawnRound(const Pair& pair, const Rule& rule, const SamplingParams& sampling, int top_n,
                uint32_t number) {
  Case round{
      .verification = rule.verification, .draw = rule.draw, .sampling = sampling, .top_n = top_n};
  round.row_of = {0};
  round.logits = {pair.target[0]};
  for (int node = 0; node < round.tree.size() && node < 3; ++node) {
    const int after = node == 0 ? 0 : 1 + round.tree.tokens[node];
    ProbRow draft_probs(4);
    sampling::MakeDraftProbs(pair.draft[after], sampling, top_n, absl::MakeSpan(draft_probs));
    const sampling::DrawSite site{.purpose = sampling::Purpose::kDraft,
                                  .position = 7 + static_cast<uint32_t>(node > 0),
                                  .draw = number,
                                  .node = static_cast<uint32_t>(node)};
    std::vector<TokenId> tokens = {0, 1};
    if (rule.draw == SiblingDraw::kWithReplacement) {
      tokens = sampling::DrawWithReplacement(draft_probs, 2, 5, site);
    } else if (rule.draw == SiblingDraw::kWithoutReplacement) {
      tokens = sampling::DrawWithoutReplacement(draft_probs, 2, 5, site);
    }
    for (TokenId token : tokens) {
      const int child = round.tree.Add(node, token, 0.0f);
      round.row_of.push_back(static_cast<int32_t>(round.rows.size()));
      round.logits.push_back(round.tree.parents[child] == 0 ? pair.target[1 + token] : Logits(4));
    }
    round.rows.push_back(draft_probs);
  }
  return round;
}

// The p-value of the first two tokens of many rounds, told apart by their draw number.
// `rule` is the verifier's; the draft draws by `drawn`.
double PValue(const Rule& rule, SiblingDraw drawn, const SamplingParams& sampling, int top_n) {
  constexpr int kRounds = 100'000;
  const Pair pair(21);
  std::vector<Distribution> p;
  for (const Logits& logits : pair.target) p.push_back(TargetDistribution(logits, sampling));
  std::mt19937 random(1);
  std::vector<int> counts(16, 0);
  TreeVerifier verifier(4);
  for (uint32_t number = 0; number < kRounds; ++number) {
    Case round = DrawnRound(pair, {rule.verification, drawn}, sampling, top_n, number);
    round.draw = rule.draw;
    const PhiloxRandomness philox(5, 7, number, round.tree);
    std::vector<TokenId> text = ByVerifier(round, philox, &verifier).tokens;
    if (text.size() == 1) {
      const Distribution& next = p[1 + text[0]];
      text.push_back(std::discrete_distribution<TokenId>(next.begin(), next.end())(random));
    }
    ++counts[text[0] * 4 + text[1]];
  }
  double statistic = 0;
  int cells = 0;
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < 4; ++b) {
      const double expected = kRounds * p[0][a] * p[1 + a][b];
      const int count = counts[a * 4 + b];
      if (expected == 0) {
        EXPECT_EQ(count, 0);
        continue;
      }
      statistic += (count - expected) * (count - expected) / expected;
      ++cells;
    }
  }
  return boost::math::cdf(boost::math::complement(boost::math::chi_squared(cells - 1), statistic));
}

TEST(TreeVerifierDistributionTest, IsTheTargetsUnderEveryLosslessRule) {
  for (const Rule& rule : kRules) {
    if (!speculation::Lossless(rule.verification)) continue;
    EXPECT_GT(PValue(rule, rule.draw, {.temperature = 0.8f}, 0), 0.001)
        << Name(rule.verification) << " " << Name(rule.draw);
    if (!speculation::NeedsDraftRows(rule.verification, rule.draw)) continue;
    EXPECT_GT(PValue(rule, rule.draw, {.temperature = 0.8f, .top_k = 3}, 2), 0.001)
        << Name(rule.verification) << " " << Name(rule.draw) << ", truncated";
  }
}

TEST(TreeVerifierDistributionTest, TheWrongRuleIsCaught) {
  EXPECT_LT(PValue({VerificationMethod::kRejection, SiblingDraw::kWithReplacement},
                   SiblingDraw::kWithoutReplacement, {}, 0),
            1e-6);
  EXPECT_LT(PValue({VerificationMethod::kTypical, SiblingDraw::kWithReplacement},
                   SiblingDraw::kWithReplacement, {}, 0),
            1e-6);
}

}  // namespace
}  // namespace specfabric::verification
