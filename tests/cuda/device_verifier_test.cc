// Whole steps of trees through the device against the CPU's walk and verification::TreeVerifier.

#include "verification/cuda/cuda_verifier.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "sampling/gumbel.h"
#include "sampling/sampling.h"
#include "tests/cuda/open_device.h"
#include "tests/verification/random_rounds.h"
#include "verification/cpu/tree_verifier.h"

namespace specfabric::verification::cuda {
namespace {

using base::cuda::DeviceArray;
using base::cuda::LogitMatrix;
using base::cuda::OpenDeviceTest;

using speculation::Accepted;
using speculation::VerificationMethod;
using verification::Case;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct SitedCase {
  Case round;
  uint32_t position = 0;
  uint32_t draw_number = 0;
};

base::TokenId ChoiceAt(const SitedCase& sited, int node) {
  const Case& round = sited.round;
  std::vector<float> noise(round.vocabulary());
  const auto depth = static_cast<uint32_t>(speculation::DepthOf(round.tree, node));
  sampling::GumbelNoise(round.sampling.seed, sited.position + depth, 0, absl::MakeSpan(noise));
  return sampling::SampleRow(round.logits[node], noise, round.sampling);
}

Accepted OnCpu(const SitedCase& sited) {
  const Case& round = sited.round;
  if (round.verification == VerificationMethod::kCoupled) {
    std::vector<base::TokenId> chosen;
    for (int node = 0; node < round.tree.size(); ++node) chosen.push_back(ChoiceAt(sited, node));
    return speculation::WalkCoupled(round.tree, chosen);
  }
  verification::TreeVerifier verifier(round.vocabulary());
  const verification::PhiloxRandomness random(round.sampling.seed, sited.position,
                                              sited.draw_number, round.tree);
  return verification::Verify(
      round, random, [&](int node) { return absl::MakeConstSpan(round.logits[node]); }, &verifier);
}

// A tree in which most draft tokens are the target's choice at their parent.
SitedCase RandomCoupled(std::mt19937* random, const verification::Shape& shape, uint32_t position) {
  SitedCase sited = {.round = {.verification = VerificationMethod::kCoupled}, .position = position};
  Case& round = sited.round;
  round.sampling = verification::RandomSampling(random);
  round.sampling.seed = (*random)() * uint64_t{0x100000001};
  if ((*random)() % 4 == 0) round.sampling.temperature = 0;
  const std::vector<int> parents = verification::RandomParents(random, shape.max_nodes);
  for (size_t node = 0; node < parents.size(); ++node) {
    if (node > 0) {
      const bool right = (*random)() % 4 != 0;
      const auto random_token = static_cast<base::TokenId>((*random)() % shape.vocabulary);
      round.tree.Add(parents[node], right ? ChoiceAt(sited, parents[node]) : random_token, 0.0f);
    }
    round.logits.push_back(verification::RandomLogits(random, shape.vocabulary, 2.0f));
  }
  return sited;
}

// Trees of every verification method in turn, half of them coupled.
std::vector<SitedCase> RandomStep(std::mt19937* random, const verification::Shape& shape,
                                  int trees) {
  std::vector<SitedCase> step;
  for (int i = 0; i < trees; ++i) {
    const auto position = static_cast<uint32_t>((*random)() % 5000);
    if ((*random)() % 2 == 0) {
      step.push_back(RandomCoupled(random, shape, position));
      continue;
    }
    const verification::Rule& rule = verification::kRules[i % std::size(verification::kRules)];
    base::SamplingParams sampling = verification::RandomSampling(random);
    sampling.seed = (*random)() * uint64_t{0x100000001};
    step.push_back({verification::RandomCase(random, rule.verification, rule.draw, shape, sampling),
                    position, static_cast<uint32_t>((*random)())});
  }
  return step;
}

class DeviceVerifierTest : public OpenDeviceTest {
 protected:
  void SetUp() override {
    OpenDeviceTest::SetUp();
    if (device_ != nullptr) verifier_.emplace(device_.get());
  }

  // Changes draft_probs on the device between validation and verification.
  std::function<void(std::vector<uint64_t>*)> tamper_ = [](std::vector<uint64_t>* /*words*/) {};

  // The trees' logit rows are in reverse order, with an unused row before each tree; rows are wider
  // than the vocabulary. Every second tree's draft_probs are in device memory already.
  absl::StatusOr<std::vector<Accepted>> OnDevice(const std::vector<SitedCase>& step) {
    const int32_t vocabulary = step[0].round.vocabulary();
    const int64_t stride = vocabulary + 3;
    int32_t rows = 0;
    for (const SitedCase& sited : step) rows += sited.round.tree.size() + 1;
    std::vector<float> values(rows * stride, kNan);
    std::deque<verification::Slot> slots;
    std::deque<DeviceArray<uint64_t>> device_slots;
    std::vector<DeviceTree> trees;
    for (const SitedCase& sited : step) {
      const Case& round = sited.round;
      rows -= round.tree.size();
      for (int node = 0; node < round.tree.size(); ++node) {
        std::copy(round.logits[node].begin(), round.logits[node].end(),
                  values.begin() + (rows + node) * stride);
      }
      DeviceTree& tree = trees.emplace_back();
      tree = {.parents = round.tree.parents,
              .tokens = round.tree.tokens,
              .first_logit = rows--,
              .verification = round.verification,
              .draw = round.draw,
              .sampling = round.sampling,
              .typical = round.typical,
              .position = sited.position,
              .draw_number = sited.draw_number};
      if (!speculation::NeedsDraftRows(round.verification, round.draw)) continue;
      const speculation::DraftProbs& draft_probs = slots.emplace_back(round).draft_probs();
      tree.draft_row = round.row_of;
      tree.draft_probs = draft_probs.bytes();
      if (slots.size() % 2 == 0) {
        std::vector<uint64_t> words = slots.back().words();
        tamper_(&words);
        uint64_t* const there = device_slots.emplace_back(words).data();
        tree.draft_probs = {reinterpret_cast<const uint8_t*>(there), draft_probs.bytes().size()};
        tree.draft_probs_on_device = true;
      }
      tree.totals = draft_probs.totals();
      tree.entries = draft_probs.shape().entries;
    }
    DeviceArray<float> logits(values);
    const LogitMatrix matrix = {.logits = logits.data(), .stride = stride, .size = vocabulary};
    // Earlier contents must be overwritten.
    std::vector<Accepted> accepted(trees.size(), {.path = {7}, .tokens = {7}});
    absl::Status status = verifier_->Verify(matrix, trees, absl::MakeSpan(accepted));
    if (!status.ok()) return status;
    return accepted;
  }

  void ExpectTheCpus(const std::vector<SitedCase>& step) {
    const absl::StatusOr<std::vector<Accepted>> found = OnDevice(step);
    ASSERT_TRUE(found.ok()) << found.status();
    for (size_t i = 0; i < step.size(); ++i) {
      SCOPED_TRACE(testing::Message()
                   << Name(step[i].round.verification) << ", tree " << i << " of " << step.size());
      const Accepted expected = OnCpu(step[i]);
      ASSERT_EQ((*found)[i].path, expected.path);
      ASSERT_EQ((*found)[i].tokens, expected.tokens);
      ASSERT_EQ((*found)[i].finite, expected.finite);
      not_finite_ += !expected.finite;
      accepted_ += static_cast<int>(expected.path.size());
      const int last = expected.path.empty() ? 0 : expected.path.back();
      rejected_ += static_cast<int>(verification::Children(step[i].round.tree, last).size());
    }
  }

  std::optional<CudaVerifier> verifier_;
  int accepted_ = 0, rejected_ = 0, not_finite_ = 0;
};

TEST_F(DeviceVerifierTest, DecidesStepsOfMixedTreesAsTheCpu) {
  std::mt19937 random(1);
  int trees = 0;
  for (const verification::Shape& shape : {verification::Shape{.vocabulary = 17, .max_nodes = 12},
                                           {.vocabulary = 301, .max_nodes = 64},
                                           {.vocabulary = 301, .max_nodes = 16, .top_n = 40},
                                           {.vocabulary = 2050, .max_nodes = 9}}) {
    for (int count : {5, 1, 12, 2, 8}) {
      SCOPED_TRACE(testing::Message() << "vocabulary " << shape.vocabulary);
      std::vector<SitedCase> step = RandomStep(&random, shape, count);
      ASSERT_NO_FATAL_FAILURE(ExpectTheCpus(step));
      for (SitedCase& sited : step) verification::Spoil(&random, &sited.round);
      ASSERT_NO_FATAL_FAILURE(ExpectTheCpus(step));
      trees += count;
    }
  }
  std::printf("trees: %d, accepted: %d, children rejected at the end: %d\n", trees, accepted_,
              rejected_);
  EXPECT_GT(accepted_, trees);
  EXPECT_GT(rejected_, trees / 4);
  EXPECT_GT(not_finite_, trees / 4);
}

TEST_F(DeviceVerifierTest, OddRowsAreDecidedAsOnTheCpu) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::mt19937 random(2);
  std::vector<SitedCase> step;
  for (const verification::Logits& logits :
       std::vector<verification::Logits>{{kNan, 1, 2, -kInf},
                                         {0, kInf, 3, kNan},
                                         {kNan, -kInf, -kInf, -kInf},
                                         {kNan, kNan, kNan, kNan},
                                         {-kInf, -kInf, -kInf, -kInf},
                                         {kInf, 0, 0, kInf}}) {
    for (int i = 0; i < 20; ++i) {
      step.push_back(RandomCoupled(&random, {.vocabulary = 4, .max_nodes = 1}, 9));
      step.back().round.logits = {logits};
    }
  }
  ASSERT_NO_FATAL_FAILURE(ExpectTheCpus(step));
}

// The peer that sent draft_probs may change them at any time: tokens must still be in the
// vocabulary, and no thread may wait forever.
TEST_F(DeviceVerifierTest, DraftProbsChangedAfterValidationBreakNothing) {
  std::mt19937 random(4);
  constexpr uint64_t kNans = 0x7FC07FC07FC07FC0;
  int tokens = 0;
  for (const verification::Shape& shape : {verification::Shape{.vocabulary = 301, .max_nodes = 40},
                                           {.vocabulary = 301, .max_nodes = 16, .top_n = 40}}) {
    for (const uint64_t word : {~uint64_t{0}, uint64_t{0}, kNans, uint64_t{0xBF80BF80BF80BF80}}) {
      // Rows with ids keep these, 20 words of 30, and of every row some draft_probs stay valid: a
      // draft token may then be rejected although the residual is NaN.
      const bool some = word == kNans;
      tamper_ = [&, word, some](auto* words) {
        for (size_t i = 0; i < words->size(); ++i) {
          const bool stays = some && (random() % 2 == 0 || (shape.top_n > 0 && i % 30 < 20));
          if (!stays) (*words)[i] = word;
        }
      };
      const std::vector<SitedCase> step = RandomStep(&random, shape, 12);
      const absl::StatusOr<std::vector<Accepted>> found = OnDevice(step);
      ASSERT_TRUE(found.ok()) << found.status();
      for (const Accepted& accepted : *found) {
        ASSERT_EQ(accepted.tokens.size(), accepted.path.size() + 1);
        for (base::TokenId token : accepted.tokens) {
          ASSERT_TRUE(token >= 0 && token < shape.vocabulary) << token;
          ++tokens;
        }
      }
    }
  }
  EXPECT_GE(tokens, 96);
}

TEST_F(DeviceVerifierTest, NothingToVerifyIsNothingDone) {
  EXPECT_TRUE(verifier_->Verify({}, {}, {}).ok());
}

TEST_F(DeviceVerifierTest, TooManyNodesAreRefusedAndTheNextStepIsVerified) {
  std::mt19937 random(3);
  SitedCase chain = RandomCoupled(&random, {.vocabulary = 3, .max_nodes = 1}, 9);
  const std::vector<SitedCase> small = {chain};
  const absl::StatusOr<std::vector<Accepted>> refused =
      OnDevice(std::vector<SitedCase>(65'536, chain));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_NO_FATAL_FAILURE(ExpectTheCpus(small));
}

TEST_F(DeviceVerifierTest, TreesOfSizesThatThereAreNotAreRefused) {
  Accepted accepted;
  for (int nodes : {0, speculation::kMaxVerifyNodes + 1}) {
    const std::vector<int32_t> parents(nodes, 0), tokens(nodes, 0);
    const DeviceTree tree = {.parents = parents, .tokens = tokens};
    EXPECT_EQ(verifier_->Verify({}, {&tree, 1}, absl::MakeSpan(&accepted, 1)).code(),
              absl::StatusCode::kInvalidArgument)
        << nodes;
  }
}

}  // namespace
}  // namespace specfabric::verification::cuda
