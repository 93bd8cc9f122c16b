#include "target/grammar_states.h"

#include <future>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tokenizer/fixture.h"

namespace specfabric::target {
namespace {

using base::Grammar;
using base::GrammarLanguage;
using base::TokenId;
using scheduler::PlanSequence;
using scheduler::RowsKind;
using scheduler::StepPlan;
using speculation::TokenTree;
using testing::HasSubstr;
using tokenizer::GrammarMatcher;

const Grammar kNumbers = {GrammarLanguage::kJsonSchema,
                          R"({"type": "array", "items": {"type": "integer"}, "minItems": 2})"};
const Grammar kWords = {GrammarLanguage::kRegex, "(that|no|yes|[a-f]+)( (that|no|[a-f]+))*"};

class GrammarStatesTest : public testing::Test {
 protected:
  GrammarStatesTest() : tokenizer_(tokenizer::LoadFixture("byte_level_words")) {
    vocabulary_ = tokenizer_->vocab_size() + 9;
    states_ = std::make_unique<GrammarStates>(
        [this] {
          ++loads_;
          return tokenizer::Grammars::Create(*tokenizer_);
        },
        vocabulary_, 2);
  }

  absl::StatusOr<GrammarMatcher> Compile(const Grammar& grammar) {
    std::promise<absl::StatusOr<GrammarMatcher>> compiled;
    states_->Compile(grammar, [&](auto matcher) { compiled.set_value(std::move(matcher)); });
    return compiled.get_future().get();
  }
  void Open(base::SequenceId id, const Grammar& grammar, const std::vector<TokenId>& text = {}) {
    auto matcher = Compile(grammar);
    ASSERT_TRUE(matcher.ok()) << matcher.status();
    ASSERT_EQ(states_->Open(id, *std::move(matcher), text), absl::OkStatus());
  }
  std::vector<uint32_t> MaskOf(GrammarMatcher* matcher) const {
    std::vector<uint32_t> mask(tokenizer::MaskWords(vocabulary_));
    EXPECT_EQ(matcher->Mask(absl::MakeSpan(mask)), absl::OkStatus());
    return mask;
  }
  TokenId RandomAllowed(GrammarMatcher* matcher) {
    const std::vector<uint32_t> mask = MaskOf(matcher);
    for (;;) {
      const auto token = static_cast<TokenId>(random_() % vocabulary_);
      if (mask[token / 32] >> (token % 32) & 1) return token;
    }
  }
  // Draft tokens of which most are allowed. matcher: where the root is.
  TokenTree RandomTree(const GrammarMatcher& matcher, int nodes) {
    TokenTree tree = TokenTree::Root(7);
    for (int node = 1; node < nodes; ++node) {
      const auto parent = static_cast<int>(random_() % node);
      GrammarMatcher here = matcher.Clone();
      const bool reached = here.Consume(PathTo(tree, parent)).ok();
      const bool follows = reached && !here.stopped() && random_() % 3 > 0;
      const auto any = static_cast<TokenId>(random_() % vocabulary_);
      tree.Add(parent, follows ? RandomAllowed(&here) : any, 0.0f);
    }
    return tree;
  }
  static std::vector<TokenId> PathTo(const TokenTree& tree, int node) {
    std::vector<TokenId> path;
    for (; node != 0; node = tree.parents[node]) path.insert(path.begin(), tree.tokens[node]);
    return path;
  }
  static void AddTree(base::SequenceId id, const TokenTree& tree, bool masked, StepPlan* plan) {
    PlanSequence& s = plan->sequences.emplace_back();
    s.id = id;
    s.first_row = plan->rows();
    s.row_count = s.logit_count = tree.size();
    s.first_logit = static_cast<int32_t>(plan->logit_rows.size());
    s.samples = true;
    s.rules.masked = masked;
    for (int i = 0; i < tree.size(); ++i) {
      plan->logit_rows.push_back(plan->rows());
      plan->tokens.push_back(tree.tokens[i]);
      plan->parents.push_back(tree.parents[i]);
    }
  }

  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  int32_t vocabulary_ = 0;
  int loads_ = 0;
  std::unique_ptr<GrammarStates> states_;
  std::mt19937 random_{1};
};

TEST_F(GrammarStatesTest, EveryNodeHasTheMaskOfItsOwnPath) {
  for (int round = 0; round < 20; ++round) {
    StepPlan plan;
    std::vector<TokenTree> trees;
    std::vector<GrammarMatcher> matchers;
    for (base::SequenceId id = 1; id <= 5; ++id) {
      const Grammar& grammar = id % 2 == 0 ? kNumbers : kWords;
      matchers.push_back(*Compile(grammar));
      std::vector<TokenId> text;
      for (int i = 0; i < round % 4; ++i) {
        text.push_back(RandomAllowed(&matchers.back()));
        ASSERT_TRUE(matchers.back().Consume({text.back()}).ok());
        if (matchers.back().stopped()) break;
      }
      Open(id, grammar, text);
      trees.push_back(RandomTree(matchers.back(), 1 + static_cast<int>(random_() % 24)));
      AddTree(id, trees.back(), id != 3, &plan);
    }
    const TokenMasks* masks = states_->Begin(plan);
    ASSERT_NE(masks, nullptr);
    for (int s = 4; s >= 0; --s) {
      if (s == 2) {
        EXPECT_TRUE(masks->rows[s].empty());
        continue;
      }
      ASSERT_EQ(masks->wait(s), absl::OkStatus());
      for (int node = 0; node < trees[s].size(); ++node) {
        GrammarMatcher fresh = matchers[s].Clone();
        const bool reached = fresh.Consume(PathTo(trees[s], node)).ok();
        const auto mask = masks->row(s, node);
        if (reached) {
          ASSERT_EQ(std::vector<uint32_t>(mask.begin(), mask.end()), MaskOf(&fresh)) << node;
        }
      }
    }
    states_->End();
    for (base::SequenceId id = 1; id <= 5; ++id) states_->Close(id);
  }
  EXPECT_EQ(loads_, 1);
}

TEST_F(GrammarStatesTest, AStepNeedNotWaitForItsMasks) {
  Open(1, kNumbers);
  StepPlan plan;
  AddTree(1, TokenTree::Root(3), true, &plan);
  for (int i = 0; i < 100; ++i) {
    ASSERT_NE(states_->Begin(plan), nullptr);
    states_->End();
  }
  StepPlan without;
  AddTree(2, TokenTree::Root(3), false, &without);
  EXPECT_EQ(states_->Begin(without), nullptr);
}

TEST_F(GrammarStatesTest, ThePrefillsLastRowHasAMask) {
  Open(1, kNumbers);
  StepPlan plan;
  PlanSequence& s = plan.sequences.emplace_back();
  s.id = 1;
  s.kind = RowsKind::kPrefill;
  s.row_count = 5;
  s.logit_count = 3;  // two of them scored
  s.samples = true;
  s.rules.masked = true;
  const TokenMasks* masks = states_->Begin(plan);
  ASSERT_NE(masks, nullptr);
  ASSERT_EQ(masks->wait(0), absl::OkStatus());
  GrammarMatcher fresh = *Compile(kNumbers);
  const auto mask = masks->row(0, 2);
  EXPECT_EQ(std::vector<uint32_t>(mask.begin(), mask.end()), MaskOf(&fresh));
  states_->End();
}

TEST_F(GrammarStatesTest, CommittedTokensAdvanceTheGrammarUpToItsEnd) {
  Open(1, {GrammarLanguage::kChoice, R"(["no"])"});
  const std::vector<TokenId> no = *tokenizer_->Encode("no", false);
  const TokenId end = tokenizer_->eos_ids().front();
  scheduler::StepResult result;
  result.sequences.Resize(1);
  result.sequences[0].id = 1;
  result.sequences[0].accepted.tokens = no;
  result.sequences[0].accepted.tokens.push_back(end);
  result.sequences[0].accepted.tokens.push_back(end);  // accepted, but after the end
  states_->Advance(&result);
  EXPECT_EQ(states_->Failure(1), "");
  // What the grammar does not allow ends the sequence.
  Open(2, {GrammarLanguage::kChoice, R"(["no"])"});
  result.sequences[0].id = 2;
  result.sequences[0].accepted.tokens = *tokenizer_->Encode("yes", false);
  states_->Advance(&result);
  EXPECT_THAT(states_->Failure(2), HasSubstr("cannot be followed"));
}

TEST_F(GrammarStatesTest, PruneLeavesWhatTheGrammarAllows) {
  for (int round = 0; round < 50; ++round) {
    Open(1, kWords);
    const GrammarMatcher start = *Compile(kWords);
    speculation::Draft draft = {.tree = RandomTree(start, 20)};
    const TokenTree before = draft.tree;
    states_->Prune(1, &draft);
    int allowed = 0;
    for (int node = 0; node < before.size(); ++node) {
      allowed += start.Clone().Consume(PathTo(before, node)).ok();
    }
    EXPECT_EQ(draft.tree.size(), allowed);
    for (int node = 0; node < draft.tree.size(); ++node) {
      EXPECT_TRUE(start.Clone().Consume(PathTo(draft.tree, node)).ok());
    }
  }
}

TEST_F(GrammarStatesTest, BadGrammarsAndBrokenVocabularies) {
  EXPECT_EQ(Compile({GrammarLanguage::kRegex, "("}).status().code(),
            absl::StatusCode::kInvalidArgument);
  auto matcher = Compile({GrammarLanguage::kChoice, R"(["no"])"});
  EXPECT_EQ(states_->Open(1, *std::move(matcher), {3, 4}).code(),
            absl::StatusCode::kInvalidArgument);
  GrammarStates none(nullptr, vocabulary_, 1);
  std::promise<absl::Status> status;
  none.Compile(kWords, [&](auto compiled) { status.set_value(compiled.status()); });
  EXPECT_EQ(status.get_future().get().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace specfabric::target
