#include "target/verifier.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "gtest/gtest.h"
#include "sampling/draft_row.h"
#include "sampling/gumbel.h"
#include "sampling/logit_changer.h"
#include "sampling/sampling.h"
#include "tests/target/fake_device.h"
#include "verification/reference/acceptance.h"

namespace specfabric::target {
namespace {

using base::SamplingParams;
using base::TokenId;
using scheduler::PlanSequence;
using scheduler::RowsKind;
using scheduler::StepPlan;

constexpr int kVocabulary = 61;  // not divisible by any number of ranks used here
constexpr verification::TypicalOptions kTypical = {.epsilon = 0.3,
                                                   .delta = 0.6};  // not the defaults

// Adds a sequence with logits for all of its rows.
void AddSequence(StepPlan* plan, base::SequenceId id, RowsKind kind, int kv_len,
                 const std::vector<int>& parents, const SamplingParams& sampling, int logprobs,
                 std::mt19937* random) {
  PlanSequence s;
  s.id = id;
  s.kind = kind;
  s.kv_len = kv_len;
  s.first_row = plan->rows();
  s.row_count = static_cast<int>(parents.size());
  s.first_logit = static_cast<int>(plan->logit_rows.size());
  s.logit_count = s.row_count;
  s.samples = true;
  s.sampling = sampling;
  s.logprobs = logprobs;
  std::vector<int> depth(parents.size(), 0);
  for (size_t i = 0; i < parents.size(); ++i) {
    if (parents[i] >= 0) depth[i] = depth[parents[i]] + 1;
    plan->tokens.push_back((*random)() % kVocabulary);
    plan->positions.push_back(kv_len + depth[i]);
    plan->parents.push_back(parents[i]);
    plan->ancestors.push_back(0);
    plan->logit_rows.push_back(s.first_row + i);
    plan->score_tokens.push_back(base::kNoToken);
  }
  plan->sequences.push_back(s);
}

// Gives the plan's last sequence logit rules, and the text that they count.
void AddRules(const base::LogitRules& rules, const std::vector<TokenId>& prompt,
              const std::vector<TokenId>& output, StepPlan* plan) {
  PlanSequence& s = plan->sequences.back();
  s.rules = rules;
  s.prompt_size = static_cast<int32_t>(prompt.size());
  sampling::TokenCounts counts;
  for (TokenId token : prompt) {
    if (rules.counts_prompt()) counts.AddPrompt(token);
  }
  for (TokenId token : output) counts.AddOutput(token);
  s.counts = counts.list();
}

StepPlan MixedPlan(std::mt19937* random) {
  StepPlan plan;
  const SamplingParams greedy{.temperature = 0};
  const SamplingParams warm{.temperature = 0.8f, .seed = 11};
  const SamplingParams filtered{.temperature = 1.2f, .top_k = 9, .top_p = 0.8f, .seed = 12};
  const std::vector<int> tree = {-1, 0, 0, 1, 1, 3};
  AddSequence(&plan, 1, RowsKind::kTree, 4, tree, greedy, -1, random);
  AddSequence(&plan, 2, RowsKind::kTree, 9, tree, warm, -1, random);
  AddSequence(&plan, 3, RowsKind::kTree, 2, {-1, 0, 1}, filtered, -1, random);
  AddSequence(&plan, 4, RowsKind::kTree, 5, {-1, 0}, warm, 3, random);
  AddSequence(&plan, 5, RowsKind::kPrefill, 0, {-1, 0, 1}, warm, 2, random);
  // The prompt's own tokens are scored; its last row chooses.
  const PlanSequence& scored = plan.sequences.back();
  plan.score_tokens[scored.first_logit] = 7;
  plan.score_tokens[scored.first_logit + 1] = 8;
  AddSequence(&plan, 6, RowsKind::kTree, 7, tree, greedy, -1, random);
  AddRules({.presence_penalty = 0.5f, .frequency_penalty = 1.0f, .repetition_penalty = 1.4f},
           {1, 2, 3, 4}, {2, 9, 9, 30}, &plan);
  AddSequence(&plan, 7, RowsKind::kTree, 7, tree, filtered, 2, random);
  AddRules({.frequency_penalty = -2.0f, .bias = {{3, 5.0f}, {60, -100.0f}}}, {1, 2},
           {9, 4, 9, 9, 9, 9}, &plan);
  // The minimum output length falls between the second and the third level of the tree.
  AddSequence(&plan, 8, RowsKind::kTree, 7, tree, greedy, -1, random);
  std::vector<TokenId> most(kVocabulary / 2);
  std::iota(most.begin(), most.end(), 0);
  AddRules({.min_tokens = 5, .suppressed_token_ids = most}, {1, 2, 3, 4, 5}, {6, 7, 8}, &plan);
  AddSequence(&plan, 9, RowsKind::kPrefill, 0, {-1, 0, 1}, warm, -1, random);
  AddRules({.repetition_penalty = 3.0f, .min_tokens = 1, .suppressed_token_ids = {40, 41}},
           {1, 2, 3}, {}, &plan);
  // Past its minimum output length.
  AddSequence(&plan, 10, RowsKind::kTree, 7, tree, warm, -1, random);
  AddRules({.min_tokens = 6, .suppressed_token_ids = most}, {1, 2}, {3, 4, 5, 6, 7, 8}, &plan);
  AddSequence(&plan, 11, RowsKind::kPrefill, 0, {-1, 0}, filtered, -1, random);
  AddSequence(&plan, 13, RowsKind::kTree, 7, tree, greedy, -1, random);
  AddRules({.masked = true}, {}, {}, &plan);
  AddSequence(&plan, 14, RowsKind::kTree, 7, tree, filtered, 2, random);
  AddRules(
      {.frequency_penalty = 1.5f, .min_tokens = 7, .suppressed_token_ids = most, .masked = true},
      {1, 2}, {9, 4, 9, 9, 1, 9}, &plan);
  AddSequence(&plan, 15, RowsKind::kPrefill, 0, {-1, 0, 1}, warm, -1, random);
  AddRules({.masked = true}, {1, 2, 3}, {}, &plan);
  return plan;
}

// What some grammar might allow at a logit row.
std::vector<bool> AllowedAt(int logit) {
  std::mt19937 random(logit);
  std::vector<bool> allowed(kVocabulary);
  for (int i = 0; i < 12; ++i) allowed[random() % kVocabulary] = true;
  return allowed;
}

TokenMasks MasksOf(const StepPlan& plan) {
  TokenMasks masks = {.words = 2, .rows = {}, .wait = {}};
  for (const PlanSequence& s : plan.sequences) {
    std::vector<uint32_t>& rows = masks.rows.emplace_back();
    if (!s.rules.masked) continue;
    rows.resize(s.logit_count * masks.words);
    for (int i = 0; i < s.logit_count; ++i) {
      const std::vector<bool> allowed = AllowedAt(s.first_logit + i);
      for (int t = 0; t < kVocabulary; ++t) {
        rows[i * masks.words + t / 32] |= uint32_t{allowed[t]} << (t % 32);
      }
    }
  }
  return masks;
}

// [logit rows][vocabulary]
std::vector<float> RandomLogits(const StepPlan& plan, std::mt19937* random) {
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(plan.logit_rows.size() * kVocabulary);
  for (float& x : logits) x = normal(*random);
  return logits;
}

using DraftProbsOfSequences = std::vector<const speculation::DraftProbs*>;  // [sequences]

enum class Logits { kOnHost, kOnDevice, kOnBrokenDevice };

// The work that the first rank's device was given.
struct Asked {
  int decided = 0;  // sequences
  std::vector<int32_t> rows;
};

scheduler::StepResult Accept(const StepPlan& plan, const VerifyResult& verify_result) {
  scheduler::StepResult result;
  Accept(plan, verify_result, &result);
  return result;
}

VerifyResult RunRanks(const StepPlan& plan, const std::vector<float>& logits, int ranks,
                      DraftProbsOfSequences draft_probs = {}, Logits where = Logits::kOnHost,
                      Asked* asked = nullptr) {
  draft_probs.resize(plan.sequences.size(), nullptr);
  const TokenMasks masks = MasksOf(plan);
  auto communicators = model::MakeThreadCommunicators(ranks);
  VerifyResult verify_result;
  verify_result.Reset(plan);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const int first = kVocabulary * r / ranks, last = kVocabulary * (r + 1) / ranks;
      std::vector<float> shard;
      for (size_t row = 0; row < plan.logit_rows.size(); ++row) {
        const auto begin = logits.begin() + row * kVocabulary;
        shard.insert(shard.end(), begin + first, begin + last);
      }
      const bool works = where == Logits::kOnDevice;
      FakeLogits on_device(shard, last - first, first, works);
      FakeVerifier device(works);
      FakeDraftRows draft_rows(works);
      RankVerifier verifier(communicators[r].get(), kVocabulary, kTypical, &device, &draft_rows);
      const auto rows = static_cast<int32_t>(plan.logit_rows.size());
      model::LogitShard here = {.rows = rows, .width = last - first, .first = first};
      if (where == Logits::kOnHost) {
        here.data = shard.data();
      } else {
        here.device = &on_device;
      }
      const absl::Status status =
          verifier.Verify(plan, {.draft_probs = draft_probs, .masks = r == 0 ? &masks : nullptr},
                          here, &verify_result);
      if (asked != nullptr && r == 0) *asked = {device.decided(), on_device.fetched_rows()};
      EXPECT_EQ(status.ok(), where != Logits::kOnBrokenDevice);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return verify_result;
}

// The row under the sequence's rules, by the reference. What was committed is laid out as a text
// with the same counts; the prompt's share of it is whatever has no count.
std::vector<float> Ruled(const StepPlan& plan, const PlanSequence& s, absl::Span<const float> row,
                         int logit) {
  std::vector<TokenId> prompt, output;
  for (const sampling::TokenCount& count : s.counts) {
    if (count.output == 0) prompt.push_back(count.token);
    output.insert(output.end(), count.output, count.token);
  }
  if (s.kind == RowsKind::kTree) {
    for (int node = plan.logit_rows[logit] - s.first_row; node > 0;
         node = plan.parents[s.first_row + node]) {
      output.push_back(plan.tokens[s.first_row + node]);
    }
  }
  const std::vector<bool> allowed = s.rules.masked ? AllowedAt(logit) : std::vector<bool>();
  const auto changed = sampling::ChangedLogitsReference(row, s.rules, prompt, output, allowed);
  return {changed.begin(), changed.end()};
}

TokenId Expected(const StepPlan& plan, const PlanSequence& s, absl::Span<const float> row,
                 int logit) {
  std::vector<float> noise(kVocabulary, 0.0f);
  const int position = plan.positions[plan.logit_rows[logit]] + 1;
  sampling::GumbelNoise(s.sampling.seed, position, 0, absl::MakeSpan(noise));
  return sampling::SampleRow(Ruled(plan, s, row, logit), noise, s.sampling);
}

// What the ranks must find for a coupled sequence, each row by itself.
scheduler::SequenceResult ExpectedResult(const StepPlan& plan, const PlanSequence& s,
                                         const std::vector<float>& logits) {
  scheduler::SequenceResult expected;
  const auto row = [&](int l) {
    return absl::MakeConstSpan(logits).subspan(l * kVocabulary, kVocabulary);
  };
  const int end = s.first_logit + s.logit_count;
  if (s.kind == RowsKind::kTree) {
    speculation::TokenTree tree;
    std::vector<TokenId> chosen;
    for (int i = 0; i < s.row_count; ++i) {
      tree.tokens.push_back(plan.tokens[s.first_row + i]);
      tree.parents.push_back(plan.parents[s.first_row + i]);
      chosen.push_back(Expected(plan, s, row(s.first_logit + i), s.first_logit + i));
    }
    expected.accepted = speculation::WalkCoupled(tree, chosen);
  } else {
    expected.accepted.tokens = {Expected(plan, s, row(end - 1), end - 1)};
  }
  if (s.logprobs < 0) return expected;
  const int last = s.kind == RowsKind::kTree ? s.first_logit : end - 1;
  for (size_t i = 0; i < expected.accepted.tokens.size(); ++i) {
    const int l = i == 0 ? last : s.first_logit + expected.accepted.path[i - 1];
    expected.logprobs.push_back(
        sampling::RowLogprobs(row(l), expected.accepted.tokens[i], s.logprobs));
  }
  for (int l = s.first_logit; l < end; ++l) {
    if (plan.score_tokens[l] == base::kNoToken) continue;
    expected.prompt_logprobs.push_back(
        sampling::RowLogprobs(row(l), plan.score_tokens[l], s.logprobs));
  }
  return expected;
}

// Whether a row that chooses or scores is not finite: then only the tokens before it are expected.
bool CutAtSpoilt(const StepPlan& plan, const PlanSequence& s, const std::vector<bool>& spoilt,
                 scheduler::SequenceResult* expected) {
  speculation::Accepted& accepted = expected->accepted;
  if (s.kind == RowsKind::kPrefill) {
    size_t scored = 0;
    for (int l = s.first_logit; l < s.first_logit + s.logit_count; ++l) {
      const bool scores = plan.score_tokens[l] != base::kNoToken;
      const bool decides = scores || l == s.first_logit + s.logit_count - 1;
      if (decides && spoilt[l]) {
        accepted = {};
        expected->logprobs.clear();
        expected->prompt_logprobs.resize(scored);
        return true;
      }
      scored += scores;
    }
    return false;
  }
  for (size_t i = 0; i < accepted.tokens.size(); ++i) {
    if (!spoilt[s.first_logit + (i == 0 ? 0 : accepted.path[i - 1])]) continue;
    accepted.tokens.resize(i);
    accepted.path.resize(i);
    expected->logprobs.resize(std::min(expected->logprobs.size(), i));
    return true;
  }
  return false;
}

void ExpectEqual(const std::vector<base::TokenLogprobs>& found,
                 const std::vector<base::TokenLogprobs>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].token, expected[i].token);
    EXPECT_EQ(found[i].logprob, expected[i].logprob);
    EXPECT_EQ(found[i].top, expected[i].top);
  }
}

TEST(RankVerifier, EveryNumberOfRanksChoosesWhatWholeRowsChoose) {
  for (int seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    StepPlan plan = MixedPlan(&random);
    std::vector<float> logits = RandomLogits(plan, &random);
    // Half of the draft tokens are what the target chooses at their parent: accepted paths grow.
    for (const PlanSequence& s : plan.sequences) {
      for (int i = 1; s.kind == RowsKind::kTree && i < s.row_count; ++i) {
        if (random() % 2 == 0) continue;
        const int l = s.first_logit + plan.parents[s.first_row + i];
        plan.tokens[s.first_row + i] =
            Expected(plan, s, absl::MakeConstSpan(logits).subspan(l * kVocabulary, kVocabulary), l);
      }
    }
    for (int ranks : {1, 2, 4}) {
      for (Logits where : {Logits::kOnHost, Logits::kOnDevice}) {
        const scheduler::StepResult result = Accept(plan, RunRanks(plan, logits, ranks, {}, where));
        for (size_t s = 0; s < plan.sequences.size(); ++s) {
          const auto expected = ExpectedResult(plan, plan.sequences[s], logits);
          const scheduler::SequenceResult& found = result.sequences[s];
          ASSERT_EQ(found.accepted.path, expected.accepted.path) << ranks << " sequence " << s;
          ASSERT_EQ(found.accepted.tokens, expected.accepted.tokens) << ranks << " sequence " << s;
          ExpectEqual(found.logprobs, expected.logprobs);
          ExpectEqual(found.prompt_logprobs, expected.prompt_logprobs);
        }
      }
    }
  }
}

// Every kind of row: of trees and prefills, chosen by pairs and from whole rows, with filters,
// rules and log-probabilities. The value that is not finite is in one rank's shard.
TEST(RankVerifier, LogitsThatAreNotFiniteEndTheirOwnSequenceBeforeThem) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf};
  int ended = 0, untouched = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    StepPlan plan = MixedPlan(&random);
    const std::vector<float> good = RandomLogits(plan, &random);
    for (const PlanSequence& s : plan.sequences) {
      for (int i = 1; s.kind == RowsKind::kTree && i < s.row_count; ++i) {
        if (random() % 3 == 0) continue;
        const int l = s.first_logit + plan.parents[s.first_row + i];
        plan.tokens[s.first_row + i] =
            Expected(plan, s, absl::MakeConstSpan(good).subspan(l * kVocabulary, kVocabulary), l);
      }
    }
    std::vector<float> logits = good;
    std::vector<bool> spoilt(plan.logit_rows.size());
    for (size_t l = 0; l < spoilt.size(); ++l) {
      spoilt[l] = random() % 6 == 0;
      // Also for suppressed tokens, whose logits nothing else reads.
      if (spoilt[l]) logits[l * kVocabulary + random() % kVocabulary] = values[random() % 3];
    }
    for (int ranks : {1, 2, 4}) {
      for (Logits where : {Logits::kOnHost, Logits::kOnDevice}) {
        const scheduler::StepResult result = Accept(plan, RunRanks(plan, logits, ranks, {}, where));
        for (size_t i = 0; i < plan.sequences.size(); ++i) {
          const PlanSequence& s = plan.sequences[i];
          const scheduler::SequenceResult& found = result.sequences[i];
          SCOPED_TRACE(testing::Message() << ranks << " ranks, sequence " << i);
          scheduler::SequenceResult expected = ExpectedResult(plan, s, good);
          const bool on_path = CutAtSpoilt(plan, s, spoilt, &expected);
          ASSERT_EQ(found.accepted.finite, !on_path);
          ASSERT_EQ(found.accepted.path, expected.accepted.path);
          ASSERT_EQ(found.accepted.tokens, expected.accepted.tokens);
          ExpectEqual(found.logprobs, expected.logprobs);
          ExpectEqual(found.prompt_logprobs, expected.prompt_logprobs);
          ended += on_path;
          for (int l = s.first_logit; l < s.first_logit + s.logit_count; ++l) {
            untouched += !on_path && spoilt[l];
          }
        }
      }
    }
  }
  EXPECT_GT(ended, 500);
  EXPECT_GT(untouched, 500);
}

// A grammar that became too complex, say: its own sequence ends.
TEST(RankVerifier, WithoutItsMasksASequenceEnds) {
  std::mt19937 random(6);
  const StepPlan plan = MixedPlan(&random);
  const std::vector<float> logits = RandomLogits(plan, &random);
  TokenMasks masks = MasksOf(plan);
  masks.wait = [](int32_t) { return absl::InternalError("too complex"); };
  VerifyResult verify_result;
  verify_result.Reset(plan);
  auto communicators = model::MakeThreadCommunicators(1);
  RankVerifier verifier(communicators[0].get(), kVocabulary);
  const DraftProbsOfSequences none(plan.sequences.size(), nullptr);
  const model::LogitShard here = {.data = logits.data(),
                                  .rows = static_cast<int32_t>(plan.logit_rows.size()),
                                  .width = kVocabulary};
  ASSERT_TRUE(
      verifier.Verify(plan, {.draft_probs = none, .masks = &masks}, here, &verify_result).ok());
  const scheduler::StepResult result = Accept(plan, verify_result);
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    EXPECT_EQ(result.sequences[i].accepted.finite, !plan.sequences[i].rules.masked) << i;
    EXPECT_EQ(result.sequences[i].accepted.tokens.empty(), plan.sequences[i].rules.masked) << i;
  }
}

TEST(RankVerifier, ADeviceErrorIsReturnedAndBlocksNoRank) {
  std::mt19937 random(5);
  const StepPlan plan = MixedPlan(&random);
  const std::vector<float> logits(plan.logit_rows.size() * kVocabulary);
  for (int ranks : {1, 2}) RunRanks(plan, logits, ranks, {}, Logits::kOnBrokenDevice);
}

// A tree's rows in a plan, and the probabilities that its draft tokens were drawn from.
struct Round {
  StepPlan plan;
  std::vector<float> logits;
  std::vector<uint8_t> bytes;
  std::unique_ptr<speculation::DraftProbs> draft_probs;
};

Round RandomRound(speculation::VerificationMethod verification, speculation::SiblingDraw draw,
                  std::mt19937* random) {
  Round round;
  std::normal_distribution<float> normal(0, 2);
  const std::vector<int> parents = {-1, 0, 0, 1, 1, 2, 3};
  AddSequence(&round.plan, 5, RowsKind::kTree, 9, parents,
              {.temperature = 0.9f, .top_p = 0.9f, .seed = (*random)()}, 2, random);
  PlanSequence& s = round.plan.sequences.back();
  s.verification = verification;
  s.draw = draw;
  s.draw_number = (*random)();
  s.draft_row = {-1, 0, 0, 1, 1, 2, 3};
  round.logits.resize(parents.size() * kVocabulary);
  for (float& x : round.logits) x = normal(*random);
  const speculation::DraftProbsShape shape = {4, kVocabulary, kVocabulary};
  round.bytes.resize(shape.bytes());
  speculation::DraftProbsWriter writer(shape, round.bytes.data());
  for (int row = 0; row < shape.rows; ++row) {
    std::vector<float> logits(kVocabulary);
    for (int x = 0; x < kVocabulary; ++x) {
      logits[x] = round.logits[row * kVocabulary + x] + normal(*random) / 2;
    }
    sampling::MakeDraftProbs(logits, s.sampling, 0, writer.WholeRow(row));
    const auto drawn = sampling::DrawWithoutReplacement(writer.WholeRow(row), 2, s.sampling.seed,
                                                        {.purpose = sampling::Purpose::kDraft});
    int child = 0;
    for (size_t node = 1; node < parents.size(); ++node) {
      if (s.draft_row[node] == row) round.plan.tokens[node] = drawn[child++ % drawn.size()];
    }
  }
  round.draft_probs =
      std::make_unique<speculation::DraftProbs>(*speculation::DraftProbs::Open(shape, round.bytes));
  return round;
}

// Straight from the reference, on probabilities in double precision.
speculation::Accepted ByReference(const Round& round) {
  const PlanSequence& s = round.plan.sequences[0];
  verification::VerifyInput input;
  input.tree = {round.plan.parents, round.plan.tokens, std::vector<float>(s.row_count)};
  input.draw = s.draw;
  input.vocabulary = kVocabulary;
  for (int node = 0; node < s.row_count; ++node) {
    const auto row = absl::MakeConstSpan(round.logits).subspan(node * kVocabulary, kVocabulary);
    const std::vector<uint8_t> keep = sampling::FilterMask(row, s.sampling);
    std::vector<double> draft_probs;
    for (int x = 0; x < kVocabulary; ++x) {
      draft_probs.push_back(keep[x] ? std::exp(row[x] / s.sampling.temperature) : 0.0);
    }
    const sampling::Distribution p = sampling::Normalized(draft_probs);
    input.p.insert(input.p.end(), p.begin(), p.end());
  }
  for (int row = 0; row < round.draft_probs->shape().rows; ++row) {
    const sampling::Distribution q = sampling::Probabilities(round.draft_probs->probs(row));
    input.q.insert(input.q.end(), q.begin(), q.end());
  }
  input.q_row = s.draft_row;
  verification::PhiloxRandomness random(s.sampling.seed, round.plan.positions[0] + 1, s.draw_number,
                                        input.tree);
  switch (s.verification) {
    case speculation::VerificationMethod::kRejection:
      return verification::AcceptByRejection(input, random);
    case speculation::VerificationMethod::kTraversal:
      return verification::AcceptByTraversal(input, random);
    default:
      return verification::AcceptTypical(input, kTypical, random);
  }
}

TEST(RankVerifier, VerifiesTreesOnTheirOwnerAsTheReferenceDoes) {
  using speculation::VerificationMethod, speculation::SiblingDraw;
  std::mt19937 random(4);
  int accepted = 0;
  for (VerificationMethod verification :
       {VerificationMethod::kRejection, VerificationMethod::kTraversal,
        VerificationMethod::kTypical}) {
    for (SiblingDraw draw : {SiblingDraw::kWithoutReplacement, SiblingDraw::kDeterministic}) {
      for (int trial = 0; trial < 100; ++trial) {
        const Round round = RandomRound(verification, draw, &random);
        const speculation::Accepted expected = ByReference(round);
        accepted += static_cast<int>(expected.path.size());
        for (int ranks : {1, 2, 4}) {
          const VerifyResult verify_result =
              RunRanks(round.plan, round.logits, ranks, {round.draft_probs.get()});
          ASSERT_EQ(verify_result.accepted[0].path, expected.path) << ranks;
          ASSERT_EQ(verify_result.accepted[0].tokens, expected.tokens) << ranks;
          const auto result = Accept(round.plan, verify_result);
          ASSERT_EQ(result.sequences[0].logprobs.size(), expected.tokens.size());
          EXPECT_EQ(result.sequences[0].logprobs.back().token, expected.tokens.back());
        }
      }
    }
  }
  EXPECT_GT(accepted, 200) << "nothing is tested if nothing is accepted";
}

// The same draft_probs, as if they were in device memory.
speculation::DraftProbs OnDevice(const speculation::DraftProbs& draft_probs) {
  std::vector<sampling::DraftRowFacts> facts;
  for (int row = 0; row < draft_probs.shape().rows; ++row) {
    facts.push_back(sampling::FactsOf(draft_probs.probs(row), draft_probs.ids(row),
                                      draft_probs.shape().vocabulary));
  }
  return *speculation::DraftProbs::OpenOnDevice(draft_probs.shape(), draft_probs.bytes(), facts);
}

// Adds the round's sequence, with its logits, to a step.
void Join(const Round& round, int logprobs, StepPlan* plan, std::vector<float>* logits) {
  PlanSequence s = round.plan.sequences[0];
  s.id += plan->sequences.size();
  s.logprobs = logprobs;
  s.first_row = plan->rows();
  s.first_logit = static_cast<int32_t>(plan->logit_rows.size());
  plan->sequences.push_back(s);
  for (int node = 0; node < s.row_count; ++node) {
    plan->tokens.push_back(round.plan.tokens[node]);
    plan->positions.push_back(round.plan.positions[node]);
    plan->parents.push_back(round.plan.parents[node]);
    plan->ancestors.push_back(0);
    plan->logit_rows.push_back(s.first_row + node);
    plan->score_tokens.push_back(base::kNoToken);
  }
  logits->insert(logits->end(), round.logits.begin(), round.logits.end());
}

// Logit rows that the device does not verify.
std::vector<int32_t> RowsForTheHost(const StepPlan& plan, const PlanSequence& s) {
  const bool tree = s.kind == RowsKind::kTree;
  const int32_t last = s.first_logit + s.logit_count - 1;
  const int32_t first_chosen = tree ? s.first_logit : last;
  const int32_t output_size = plan.positions[plan.logit_rows[first_chosen]] + 1 - s.prompt_size;
  std::vector<int32_t> rows;
  if (s.logprobs < 0 && !s.rules.ChangeAt(output_size)) return rows;
  for (int32_t l = s.first_logit; l <= last; ++l) {
    if (tree || l == last || plan.score_tokens[l] != base::kNoToken) rows.push_back(l);
  }
  return rows;
}

// Some sequences of a step are verified on the device; others need their rows on the host, and with
// them draft_probs that are on the device.
TEST(RankVerifier, ASingleDeviceVerifiesWhatItCanAndOnlyOtherRowsAreFetched) {
  using speculation::VerificationMethod, speculation::SiblingDraw;
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    StepPlan plan = MixedPlan(&random);
    std::vector<float> logits = RandomLogits(plan, &random);
    std::vector<Round> rounds;
    std::deque<speculation::DraftProbs> there;
    DraftProbsOfSequences draft_probs(plan.sequences.size(), nullptr), on_device = draft_probs;
    for (VerificationMethod verification :
         {VerificationMethod::kRejection, VerificationMethod::kTraversal,
          VerificationMethod::kTypical}) {
      for (SiblingDraw draw : {SiblingDraw::kWithoutReplacement, SiblingDraw::kDeterministic}) {
        for (int logprobs : {-1, 2}) {
          rounds.push_back(RandomRound(verification, draw, &random));
          Join(rounds.back(), logprobs, &plan, &logits);
          draft_probs.push_back(rounds.back().draft_probs.get());
          on_device.push_back(&there.emplace_back(OnDevice(*draft_probs.back())));
        }
      }
    }
    const auto expected = Accept(plan, RunRanks(plan, logits, 1, draft_probs));
    Asked asked;
    const DraftProbsOfSequences& given = seed % 2 == 0 ? on_device : draft_probs;
    const auto found = Accept(plan, RunRanks(plan, logits, 1, given, Logits::kOnDevice, &asked));
    int for_the_device = 0;
    std::vector<int32_t> rows;
    for (size_t s = 0; s < plan.sequences.size(); ++s) {
      EXPECT_EQ(found.sequences[s].accepted.path, expected.sequences[s].accepted.path) << s;
      EXPECT_EQ(found.sequences[s].accepted.tokens, expected.sequences[s].accepted.tokens) << s;
      ExpectEqual(found.sequences[s].logprobs, expected.sequences[s].logprobs);
      ExpectEqual(found.sequences[s].prompt_logprobs, expected.sequences[s].prompt_logprobs);
      const std::vector<int32_t> seen = RowsForTheHost(plan, plan.sequences[s]);
      for_the_device += seen.empty() ? 1 : 0;
      rows.insert(rows.end(), seen.begin(), seen.end());
    }
    EXPECT_EQ(asked.decided, for_the_device);
    std::sort(asked.rows.begin(), asked.rows.end());
    EXPECT_EQ(asked.rows, rows);
    EXPECT_LT(rows.size(), plan.logit_rows.size());
  }
}

// Their sender may still write to them.
TEST(RankVerifier, DraftProbsThatBecomeInvalidVerifyNothing) {
  using speculation::VerificationMethod, speculation::SiblingDraw;
  std::mt19937 random(9);
  for (VerificationMethod verification :
       {VerificationMethod::kRejection, VerificationMethod::kTraversal}) {
    for (int trial = 0; trial < 20; ++trial) {
      Round round = RandomRound(verification, SiblingDraw::kWithoutReplacement, &random);
      const speculation::DraftProbs there = OnDevice(*round.draft_probs);
      std::fill(round.bytes.begin(), round.bytes.end(), uint8_t{0xFF});
      const VerifyResult verify_result =
          RunRanks(round.plan, round.logits, 1, {&there}, Logits::kOnDevice);
      EXPECT_TRUE(verify_result.accepted[0].path.empty());
      ASSERT_EQ(verify_result.accepted[0].tokens.size(), 1u);
      const auto row = absl::MakeConstSpan(round.logits).first(kVocabulary);
      const auto kept = sampling::FilterMask(row, round.plan.sequences[0].sampling);
      EXPECT_TRUE(kept[verify_result.accepted[0].tokens[0]]);
    }
  }
}

// Two branches hold the same token in front of equal rows, one of them twice.
TEST(RankVerifier, CountsANodesOwnPathAndNoOther) {
  std::mt19937 random(3);
  StepPlan plan;
  AddSequence(&plan, 1, RowsKind::kTree, 4, {-1, 0, 0, 1, 2}, {.temperature = 0}, 1, &random);
  plan.tokens = {5, 10, 11, 10, 12};
  AddRules({.frequency_penalty = 1.0f}, {1, 2, 3, 4}, {5}, &plan);
  std::vector<float> logits;
  for (int row = 0; row < 5; ++row) {
    std::vector<float> one(kVocabulary, 0.0f);
    one[10] = 2.5f;
    one[20] = 1.0f;
    logits.insert(logits.end(), one.begin(), one.end());
  }
  for (int ranks : {1, 2, 4}) {
    const scheduler::StepResult result = Accept(plan, RunRanks(plan, logits, ranks));
    // Only below token 10 does the penalty exceed the lead of 10.
    EXPECT_EQ(result.sequences[0].accepted.tokens, (std::vector<TokenId>{10, 10, 20})) << ranks;
    // Log-probabilities are of the logits without penalties.
    ASSERT_EQ(result.sequences[0].logprobs.size(), 3u);
    EXPECT_EQ(result.sequences[0].logprobs[2].top[0].first, 10);
    EXPECT_EQ(result.sequences[0].logprobs[2].token, 20);
  }
}

TEST(RankVerifier, ExactTiesGoToTheLowestIdAcrossRanks) {
  std::mt19937 random(1);
  StepPlan plan;
  AddSequence(&plan, 1, RowsKind::kTree, 3, {-1}, {.temperature = 0}, -1, &random);
  std::vector<float> logits(kVocabulary, 1.0f);
  logits[45] = logits[17] = logits[59] = 2.0f;
  for (int ranks : {1, 2, 4}) {
    const scheduler::StepResult result = Accept(plan, RunRanks(plan, logits, ranks));
    EXPECT_EQ(result.sequences[0].accepted.tokens[0], 17);
  }
}

TEST(Accept, WalksTheTreeAndReportsThePrompt) {
  std::mt19937 random(2);
  StepPlan plan;
  AddSequence(&plan, 1, RowsKind::kTree, 3, {-1, 0, 0, 2}, {.temperature = 0}, 1, &random);
  AddSequence(&plan, 2, RowsKind::kPrefill, 0, {-1, 0}, {.temperature = 0}, -1, &random);
  plan.tokens = {5, 10, 11, 12, 1, 2};
  VerifyResult verify_result;
  verify_result.Reset(plan);
  verify_result.chosen = {11, 1, 12, 40, base::kNoToken, 33};
  for (int i = 0; i < 6; ++i) verify_result.logprobs[i].token = verify_result.chosen[i];
  const scheduler::StepResult result = Accept(plan, verify_result);
  ASSERT_EQ(result.sequences.size(), 2u);
  EXPECT_EQ(result.sequences[0].accepted.path, (std::vector<int>{2, 3}));
  EXPECT_EQ(result.sequences[0].accepted.tokens, (std::vector<TokenId>{11, 12, 40}));
  ASSERT_EQ(result.sequences[0].logprobs.size(), 3u);
  EXPECT_EQ(result.sequences[0].logprobs[1].token, 12);
  EXPECT_EQ(result.sequences[1].accepted.tokens, (std::vector<TokenId>{33}));
}

}  // namespace
}  // namespace specfabric::target
