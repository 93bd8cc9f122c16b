// The device's verification against verification::TreeVerifier, from the same random numbers.

#include "verification/cuda/tree_verify.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <random>

#include "base/bfloat16.h"
#include "base/exp.h"
#include "speculation/verification_method.h"
#include "tests/cuda/device.h"
#include "tests/cuda/row_joins.h"
#include "tests/cuda/shuffle.h"
#include "tests/verification/random_rounds.h"
#include "verification/cpu/tree_verifier.h"

namespace specfabric::verification::cuda {
namespace {

using base::cuda::DeviceArray;
using base::cuda::DeviceTest;

using speculation::Accepted;
using speculation::SiblingDraw;
using speculation::VerificationMethod;
using verification::Case;
using verification::Rule;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct SitedCase {
  Case round;
  verification::RoundSite site = {};
};

Accepted OnCpu(const SitedCase& sited, verification::TreeVerifier* verifier) {
  const Case& round = sited.round;
  const verification::PhiloxRandomness random(sited.site.seed, sited.site.position, sited.site.draw,
                                              round.tree);
  return verification::Verify(
      round, random, [&](int node) { return absl::MakeConstSpan(round.logits[node]); }, verifier);
}

// Verifies rounds of one vocabulary on the device, as one batch. Their logit rows are wider than
// the vocabulary, in reverse order, with unused rows in between.
class DeviceRounds {
 public:
  explicit DeviceRounds(const std::vector<SitedCase>& cases)
      : vocabulary_(cases[0].round.vocabulary()), stride_(vocabulary_ + vocabulary_ % 3) {
    for (const SitedCase& sited : cases) AddDraftProbs(sited.round);
    draft_probs_.emplace(words_);
    totals_.emplace(all_totals_);
    int32_t rows = 0;
    for (const SitedCase& sited : cases) rows += sited.round.tree.size() + 1;
    logits_.assign(rows * stride_, kNan);
    for (size_t i = 0; i < cases.size(); ++i) {
      rows -= cases[i].round.tree.size() + 1;
      Add(cases[i], i, rows);
    }
  }

  std::vector<Walked> Verify() {
    DeviceArray<int32_t> begin(begin_), parents(parents_), tokens(tokens_), row_of(row_of_);
    DeviceArray<TreeRound> rounds(rounds_);
    DeviceArray<float> logits(logits_);
    const int32_t count = static_cast<int32_t>(rounds_.size());
    RoundBatch batch = {.trees = {.sequences = count,
                                  .begin = begin.data(),
                                  .parents = parents.data(),
                                  .tokens = tokens.data()},
                        .rounds = rounds.data(),
                        .draft_row = row_of.data(),
                        .nodes = begin_.back(),
                        .logits = logits.data(),
                        .stride = stride_,
                        .vocabulary = vocabulary_,
                        .filtered = filtered_};
    DeviceArray<uint8_t> workspace(TreeVerifyBytes(batch));
    RowJoins joins(batch.nodes, vocabulary_);
    DeviceArray<Walked> verified(count);
    std::vector<Walked> first_run;
    for (const uint64_t seed : {1, 2}) {
      base::cuda::ShuffleThreads(seed);
      // Residuals added up by all blocks beforehand have the bits of those that a tree's own adds
      // up.
      batch.whole_rows = seed == 1;
      EXPECT_EQ(EnqueueTreeVerify(batch, workspace.data(), joins.As(), verified.data(), nullptr),
                absl::OkStatus());
      if (seed == 1) first_run = verified.Read();
    }
    const std::vector<Walked> second_run = verified.Read();
    for (size_t i = 0; i < first_run.size(); ++i) {
      EXPECT_EQ(second_run[i].path, first_run[i].path) << i;
      EXPECT_EQ(second_run[i].bonus, first_run[i].bonus) << i;
    }
    EXPECT_TRUE(joins.AreZeros());
    return first_run;
  }

 private:
  void AddDraftProbs(const Case& round) {
    first_word_.push_back(words_.size());
    first_total_.push_back(all_totals_.size());
    if (!speculation::NeedsDraftRows(round.verification, round.draw)) return;
    const verification::Slot slot(round);
    words_.insert(words_.end(), slot.words().begin(), slot.words().end());
    for (int row = 0; row < slot.draft_probs().shape().rows; ++row) {
      all_totals_.push_back(slot.draft_probs().total(row));
    }
  }
  void Add(const SitedCase& sited, size_t i, int32_t first_logit) {
    const Case& round = sited.round;
    filtered_ = filtered_ || round.sampling.filtered();
    rounds_.push_back(
        {.site = sited.site,
         .verification = round.verification,
         .draw = round.draw,
         .sampling = round.sampling,
         .typical = round.typical,
         .first_logit = first_logit,
         .draft_probs = reinterpret_cast<const uint8_t*>(draft_probs_->data() + first_word_[i]),
         .totals = totals_->data() + first_total_[i],
         .entries = round.top_n == 0 ? vocabulary_ : round.top_n});
    parents_.insert(parents_.end(), round.tree.parents.begin(), round.tree.parents.end());
    tokens_.insert(tokens_.end(), round.tree.tokens.begin(), round.tree.tokens.end());
    row_of_.insert(row_of_.end(), round.row_of.begin(), round.row_of.end());
    begin_.push_back(static_cast<int32_t>(tokens_.size()));
    for (int node = 0; node < round.tree.size(); ++node) {
      std::copy(round.logits[node].begin(), round.logits[node].end(),
                logits_.begin() + (first_logit + node) * stride_);
    }
  }

  const int32_t vocabulary_;
  const int64_t stride_;
  bool filtered_ = false;
  std::vector<uint64_t> words_;
  std::vector<double> all_totals_;
  std::vector<size_t> first_word_, first_total_;
  std::optional<DeviceArray<uint64_t>> draft_probs_;
  std::optional<DeviceArray<double>> totals_;
  std::vector<int32_t> begin_ = {0}, parents_, tokens_, row_of_;
  std::vector<TreeRound> rounds_;
  std::vector<float> logits_;
};

struct Tally {
  int rounds = 0, accepted = 0, rejected = 0, not_finite = 0;
};

void ExpectTheCpus(const std::vector<SitedCase>& cases, Tally* tally) {
  verification::TreeVerifier verifier(cases[0].round.vocabulary());
  const std::vector<Walked> verified = DeviceRounds(cases).Verify();
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& round = cases[i].round;
    SCOPED_TRACE(testing::Message() << Name(round.verification) << " " << Name(round.draw)
                                    << ", round " << i << " of " << cases.size());
    const Accepted expected = OnCpu(cases[i], &verifier);
    uint64_t path = 1;
    for (int node : expected.path) path |= uint64_t{1} << node;
    const int last = expected.path.empty() ? 0 : expected.path.back();
    ASSERT_EQ(verified[i].path, path);
    ASSERT_EQ(verified[i].last, last);
    ASSERT_EQ(verified[i].bonus, expected.finite ? expected.tokens.back() : base::kNoToken);
    tally->not_finite += !expected.finite;
    ++tally->rounds;
    tally->accepted += static_cast<int>(expected.path.size());
    tally->rejected += static_cast<int>(verification::Children(round.tree, last).size());
  }
}

// Batches with one round of every verification method and draw; half of them have filters, and in
// every fourth the logits of some nodes are not finite.
void ExpectTheCpus(uint32_t seed, const verification::Shape& shape, int batches, Tally* tally) {
  std::mt19937 random(seed);
  for (int batch = 0; batch < batches; ++batch) {
    std::vector<SitedCase> cases;
    for (const Rule& rule : verification::kRules) {
      cases.push_back({verification::RandomCase(&random, rule.verification, rule.draw, shape,
                                                verification::RandomSampling(&random)),
                       {.seed = random() * uint64_t{0x100000001},
                        .position = static_cast<uint32_t>(random() % 5000),
                        .draw = static_cast<uint32_t>(random())}});
      if (batch % 4 == 3) verification::Spoil(&random, &cases.back().round);
    }
    SCOPED_TRACE(testing::Message() << "vocabulary " << shape.vocabulary << ", batch " << batch);
    ASSERT_NO_FATAL_FAILURE(ExpectTheCpus(cases, tally));
  }
}

void ExpectDecisions(const Tally& tally) {
  std::printf("rounds: %d, accepted: %d, children rejected at the end: %d\n", tally.rounds,
              tally.accepted, tally.rejected);
  EXPECT_GT(tally.accepted, tally.rounds / 2);
  EXPECT_GT(tally.not_finite, tally.rounds / 50);
  EXPECT_GT(tally.rejected, tally.rounds / 2);
}

class TreeVerifyTest : public DeviceTest {};

TEST_F(TreeVerifyTest, DecidesAsTheCpuOnSmallVocabularies) {
  Tally tally;
  for (int vocabulary : {2, 3, 17}) {
    ExpectTheCpus(1, {.vocabulary = vocabulary, .max_nodes = 12}, 12, &tally);
    ExpectTheCpus(2, {.vocabulary = vocabulary, .max_nodes = 64}, 2, &tally);
    ExpectTheCpus(3, {.vocabulary = vocabulary, .max_nodes = 12, .top_n = 2}, 8, &tally);
  }
  ExpectDecisions(tally);
}

TEST_F(TreeVerifyTest, DecidesAsTheCpuWhereThereIsOneToken) {
  Tally tally;
  ExpectTheCpus(10, {.vocabulary = 1, .max_nodes = 6}, 8, &tally);
  EXPECT_GT(tally.accepted, tally.rounds / 2);
}

TEST_F(TreeVerifyTest, DecidesAsTheCpuOnLargerVocabularies) {
  Tally tally;
  ExpectTheCpus(4, {.vocabulary = 512, .max_nodes = 64}, 3, &tally);
  ExpectTheCpus(5, {.vocabulary = 512, .max_nodes = 64, .top_n = 40}, 3, &tally);
  ExpectTheCpus(6, {.vocabulary = 1025, .max_nodes = 20}, 4, &tally);
  ExpectTheCpus(7, {.vocabulary = 4099, .max_nodes = 24}, 2, &tally);
  ExpectTheCpus(8, {.vocabulary = 4099, .max_nodes = 24, .top_n = 64}, 2, &tally);
  // More chunks than a block has warps.
  ExpectTheCpus(9, {.vocabulary = 40'000, .max_nodes = 6}, 1, &tally);
  ExpectDecisions(tally);
}

TEST_F(TreeVerifyTest, DecidesAsTheCpuOnSmallResidualsAndOddRows) {
  // The first sibling has all but 2^-40 of the draft's mass: the rest must be summed again.
  const float little = 0x1p-40f;
  Case round{.verification = VerificationMethod::kRejection,
             .draw = SiblingDraw::kWithoutReplacement};
  round.tree.Add(0, 0, 0.0f);
  round.tree.Add(0, 1, 0.0f);
  round.row_of = {0, 0, 0};
  round.logits.assign(3, {-2, 0.5f, 0, 1});
  round.rows = {{base::RoundToBFloat16(1), base::RoundToBFloat16(3 * little),
                 base::RoundToBFloat16(little), 0}};
  std::vector<SitedCase> cases;
  for (uint32_t draw = 0; draw < 200; ++draw) {
    round.top_n = draw % 2 == 0 ? 0 : 3;
    round.verification =
        draw % 4 < 2 ? VerificationMethod::kRejection : VerificationMethod::kTraversal;
    cases.push_back({round, {.seed = 1, .position = 9, .draw = draw}});
  }
  std::mt19937 random(11);
  for (const verification::Logits& logits :
       std::vector<verification::Logits>{{kNan, 1, 2, -kInf},
                                         {0, kInf, 3, kNan},
                                         {kNan, kNan, kNan, kNan},
                                         {-kInf, -kInf, -kInf, -kInf},
                                         {kInf, 0, 0, kInf}}) {
    for (const Rule& rule : verification::kRules) {
      for (uint32_t draw = 0; draw < 10; ++draw) {
        Case odd = verification::RandomCase(&random, rule.verification, rule.draw,
                                            {.vocabulary = 4, .max_nodes = 6},
                                            verification::RandomSampling(&random));
        for (verification::Logits& row : odd.logits) row = logits;
        cases.push_back({odd, {.seed = 1, .position = 9, .draw = draw}});
      }
    }
  }
  Tally tally;
  ExpectTheCpus(cases, &tally);
}

// More than 512 nodes at once, of trees with and without filters.
TEST_F(TreeVerifyTest, DecidesManyTreesAtOnceAsTheCpu) {
  std::mt19937 random(12);
  for (const bool filtered : {false, true}) {
    std::vector<SitedCase> cases;
    int nodes = 0;
    while (nodes <= 512) {
      const Rule& rule = verification::kRules[cases.size() % std::size(verification::kRules)];
      base::SamplingParams sampling = {.temperature = 0.8f};
      if (filtered && cases.size() % 3 == 0) sampling.top_k = 9;
      cases.push_back({verification::RandomCase(&random, rule.verification, rule.draw,
                                                {.vocabulary = 37, .max_nodes = 24}, sampling),
                       {.seed = random(), .draw = static_cast<uint32_t>(random())}});
      nodes += cases.back().round.tree.size();
    }
    Tally tally;
    ASSERT_NO_FATAL_FAILURE(ExpectTheCpus(cases, &tally));
  }
}

// The bonus token where the random number lies so near to the border between two tokens that only
// sums in the right order tell on which side it is.
TEST_F(TreeVerifyTest, BordersBetweenTokensAreThoseOfTheCpu) {
  const base::ExpScale scale = base::ScaleFor(1.0f);
  Case round{.verification = VerificationMethod::kRejection, .draw = SiblingDraw::kDeterministic};
  round.row_of = {0};
  std::vector<SitedCase> cases;
  for (uint32_t draw = 0; draw < 400'000 && cases.size() < 8; ++draw) {
    const verification::RoundSite site = {.seed = 5, .position = 3, .draw = draw};
    const double uniform = verification::ResidualUniform(site, 0, 0);
    if (uniform > 0.5) continue;
    const auto logit = static_cast<float>(std::log(uniform / (1 - uniform)));
    const double value = base::ScaledExp(logit, 0, scale);
    if (std::abs(uniform * (value + 1) - value) > 0x1p-41) continue;
    round.logits.assign(1, {logit, 0.0f});
    cases.push_back({round, site});
  }
  ASSERT_GE(cases.size(), 2u);
  Tally tally;
  ExpectTheCpus(cases, &tally);
}

TEST(RoundBatchTest, InvalidBatchesAreRefused) {
  for (const RoundBatch& batch :
       {RoundBatch{.vocabulary = 5},
        RoundBatch{.trees = {.sequences = 2}, .nodes = 1, .vocabulary = 5},
        RoundBatch{.trees = {.sequences = 1}, .nodes = 1},
        RoundBatch{.trees = {.sequences = 1}, .nodes = 1, .vocabulary = kMostVocabulary}}) {
    EXPECT_EQ(EnqueueTreeVerify(batch, nullptr, nullptr, nullptr, nullptr).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace specfabric::verification::cuda
