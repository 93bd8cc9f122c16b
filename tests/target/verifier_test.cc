#include "target/verifier.h"

#include <numeric>
#include <random>
#include <thread>

#include "gtest/gtest.h"
#include "speculation/logit_rules.h"
#include "speculation/sampling.h"

namespace specfabric::target {
namespace {

using base::SamplingParams;
using base::TokenId;
using scheduler::PlanSequence;
using scheduler::RowsKind;
using scheduler::StepPlan;

constexpr int kVocabulary = 61;  // divides by no number of ranks used here

// Adds a sequence whose rows all want logits.
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

// Gives the plan's last sequence rules, and the text that they look at.
void AddRules(const base::LogitRules& rules, const std::vector<TokenId>& prompt,
              const std::vector<TokenId>& output, StepPlan* plan) {
  PlanSequence& s = plan->sequences.back();
  s.rules = rules;
  s.prompt_size = static_cast<int32_t>(prompt.size());
  speculation::TokenCounts counts;
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
  // The bar falls between the second and the third level of the tree.
  AddSequence(&plan, 8, RowsKind::kTree, 7, tree, greedy, -1, random);
  std::vector<TokenId> most(kVocabulary / 2);
  std::iota(most.begin(), most.end(), 0);
  AddRules({.min_tokens = 5, .barred_ids = most}, {1, 2, 3, 4, 5}, {6, 7, 8}, &plan);
  AddSequence(&plan, 9, RowsKind::kPrefill, 0, {-1, 0, 1}, warm, -1, random);
  AddRules({.repetition_penalty = 3.0f, .min_tokens = 1, .barred_ids = {40, 41}}, {1, 2, 3}, {},
           &plan);
  return plan;
}

Verdict RunRanks(const StepPlan& plan, const std::vector<float>& logits, int ranks) {
  auto communicators = model::MakeThreadCommunicators(ranks);
  Verdict verdict;
  verdict.Reset(plan.logit_rows.size());
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const int first = kVocabulary * r / ranks, last = kVocabulary * (r + 1) / ranks;
      std::vector<float> shard;
      for (size_t row = 0; row < plan.logit_rows.size(); ++row) {
        const auto begin = logits.begin() + row * kVocabulary;
        shard.insert(shard.end(), begin + first, begin + last);
      }
      RankVerifier verifier(communicators[r].get(), kVocabulary);
      const auto rows = static_cast<int32_t>(plan.logit_rows.size());
      verifier.Verify(plan, {shard.data(), rows, last - first, first}, &verdict);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return verdict;
}

// The row under the sequence's rules, by the reference. What was committed is laid out as a text
// with the same counts; the prompt's share of it is whatever has no count.
std::vector<float> Ruled(const StepPlan& plan, const PlanSequence& s, absl::Span<const float> row,
                         int logit) {
  std::vector<TokenId> prompt, output;
  for (const speculation::TokenCount& count : s.counts) {
    if (count.output == 0) prompt.push_back(count.token);
    output.insert(output.end(), count.output, count.token);
  }
  if (s.kind == RowsKind::kTree) {
    for (int node = plan.logit_rows[logit] - s.first_row; node > 0;
         node = plan.parents[s.first_row + node]) {
      output.push_back(plan.tokens[s.first_row + node]);
    }
  }
  const auto changed = speculation::ChangedLogitsReference(row, s.rules, prompt, output);
  return {changed.begin(), changed.end()};
}

TokenId Expected(const StepPlan& plan, const PlanSequence& s, absl::Span<const float> row,
                 int logit) {
  std::vector<float> noise(kVocabulary, 0.0f);
  const int position = plan.positions[plan.logit_rows[logit]] + 1;
  speculation::GumbelNoise(s.sampling.seed, position, 0, absl::MakeSpan(noise));
  return speculation::SampleRow(Ruled(plan, s, row, logit), noise, s.sampling);
}

TEST(RankVerifier, EveryNumberOfRanksChoosesWhatAWholeRowChooses) {
  for (int seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 2);
    const StepPlan plan = MixedPlan(&random);
    std::vector<float> logits(plan.logit_rows.size() * kVocabulary);
    for (float& x : logits) x = normal(random);
    for (int ranks : {1, 2, 4}) {
      const Verdict verdict = RunRanks(plan, logits, ranks);
      for (const PlanSequence& s : plan.sequences) {
        for (int l = s.first_logit; l < s.first_logit + s.logit_count; ++l) {
          const absl::Span<const float> row(logits.data() + l * kVocabulary, kVocabulary);
          const bool chooses = s.kind == RowsKind::kTree || l == s.first_logit + s.logit_count - 1;
          const TokenId expected = chooses ? Expected(plan, s, row, l) : base::kNoToken;
          ASSERT_EQ(verdict.chosen[l], expected) << "ranks " << ranks << " logit " << l;
          if (s.logprobs < 0) continue;
          const TokenId about = chooses ? expected : plan.score_tokens[l];
          const auto wanted = speculation::RowLogprobs(row, about, s.logprobs);
          EXPECT_EQ(verdict.logprobs[l].token, about);
          EXPECT_EQ(verdict.logprobs[l].logprob, wanted.logprob);
          EXPECT_EQ(verdict.logprobs[l].top, wanted.top);
        }
      }
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
    const Verdict verdict = RunRanks(plan, logits, ranks);
    // Only below 10, 10 has the token lost more than it leads by.
    EXPECT_EQ(verdict.chosen, (std::vector<TokenId>{10, 10, 10, 20, 10})) << ranks;
    // Log-probabilities are of the logits as they were.
    EXPECT_EQ(verdict.logprobs[3].top[0].first, 10);
    EXPECT_EQ(verdict.logprobs[3].token, 20);
  }
}

TEST(RankVerifier, ExactTiesGoToTheLowestIdAcrossRanks) {
  std::mt19937 random(1);
  StepPlan plan;
  AddSequence(&plan, 1, RowsKind::kTree, 3, {-1}, {.temperature = 0}, -1, &random);
  std::vector<float> logits(kVocabulary, 1.0f);
  logits[45] = logits[17] = logits[59] = 2.0f;
  for (int ranks : {1, 2, 4}) EXPECT_EQ(RunRanks(plan, logits, ranks).chosen[0], 17);
}

TEST(Accept, WalksTheTreeAndReportsThePrompt) {
  std::mt19937 random(2);
  StepPlan plan;
  AddSequence(&plan, 1, RowsKind::kTree, 3, {-1, 0, 0, 2}, {.temperature = 0}, 1, &random);
  AddSequence(&plan, 2, RowsKind::kPrefill, 0, {-1, 0}, {.temperature = 0}, -1, &random);
  plan.tokens = {5, 10, 11, 12, 1, 2};
  Verdict verdict;
  verdict.Reset(6);
  verdict.chosen = {11, 1, 12, 40, base::kNoToken, 33};
  for (int i = 0; i < 6; ++i) verdict.logprobs[i].token = verdict.chosen[i];
  const scheduler::StepResult result = Accept(plan, verdict);
  ASSERT_EQ(result.sequences.size(), 2u);
  EXPECT_EQ(result.sequences[0].accepted.path, (std::vector<int>{2, 3}));
  EXPECT_EQ(result.sequences[0].accepted.tokens, (std::vector<TokenId>{11, 12, 40}));
  ASSERT_EQ(result.sequences[0].logprobs.size(), 3u);
  EXPECT_EQ(result.sequences[0].logprobs[1].token, 12);
  EXPECT_EQ(result.sequences[1].accepted.tokens, (std::vector<TokenId>{33}));
}

}  // namespace
}  // namespace specfabric::target
