// Drafters that predict a block in one pass over their target's hidden states. The model is played:
// what a row gives is a hash of all that it sees, so that a wrong state, token, position or key
// anywhere shows in the tokens.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/draft/state_engine.h"

namespace specfabric::draft {
namespace {

using base::TokenId;
using model::MarkovKind;

constexpr TokenId kMask = 996;
constexpr int32_t kRows = 5, kRank = 1;

uint64_t ContextKeyOf(float state, int32_t position) {
  return Mixed(static_cast<uint64_t>(state * 1024), position);
}
// A row of the block, and what it gives, `seen` being the sum of the keys that it sees.
uint64_t RowKeyOf(TokenId token, int32_t position) { return Mixed(token + 5000, position); }
uint64_t RowOf(uint64_t seen, TokenId token, int32_t position) {
  return Mixed(seen, RowKeyOf(token, position));
}
// The second best of a row.
TokenId OtherOf(TokenId best) { return (best + 1) % (kVocabulary - 1); }
TokenId BestOf(uint64_t row) { return static_cast<TokenId>(base::Mix64(row) % (kVocabulary - 1)); }
float NextStateOf(uint64_t row, TokenId before, float state) {
  return static_cast<float>(Mixed(Mixed(row, before), static_cast<uint64_t>(state)) % 4096);
}

// What drafting a chain after an anchor is to give.
struct Played {
  bool from_anchor = false;
  MarkovKind markov = MarkovKind::kNone;

  int32_t levels() const { return from_anchor ? kRows : kRows - 1; }
  // Of a token behind `before`, which is of this level.
  TokenId Choose(uint64_t row, TokenId before, float state) const {
    if (markov == MarkovKind::kNone) return BestOf(row);
    const uint64_t corrected = Mixed(row, before);
    return BestOf(markov == MarkovKind::kRecurrent ? Mixed(corrected, static_cast<uint64_t>(state))
                                                   : corrected);
  }
  std::vector<TokenId> Chain(const std::vector<TokenId>& text, int32_t first, int length) const {
    const auto anchor = static_cast<int32_t>(text.size()) - 1;
    uint64_t seen = 0;
    for (int32_t p = first; p < anchor; ++p) seen += ContextKeyOf(FusedOf(p), p);
    for (int32_t i = 0; i < kRows; ++i) seen += RowKeyOf(i == 0 ? text.back() : kMask, anchor + i);
    std::vector<TokenId> chain;
    float state = 0;
    for (int level = 0; level < length; ++level) {
      const int32_t i = level + (from_anchor ? 0 : 1);
      const uint64_t row = RowOf(seen, i == 0 ? text.back() : kMask, anchor + i);
      const TokenId before = chain.empty() ? text.back() : chain.back();
      chain.push_back(Choose(row, before, state));
      state = NextStateOf(row, before, state);
    }
    return chain;
  }
};

class PlayedBlocks : public PlayedModel {
 public:
  PlayedBlocks(Played played, bool confident) : played_(played) {
    config_.mask_token = kMask;
    config_.states->block = model::BlockDrafter{.rows = kRows,
                                                .from_anchor = played.from_anchor,
                                                .causal = {false},
                                                .markov = played.markov,
                                                .markov_rank = kRank,
                                                .confidence = confident};
  }
  absl::Status WriteContext(const model::Batch& batch) override {
    written_ += batch.rows();
    for (const model::BatchSequence& sequence : batch.sequences) {
      for (int32_t i = 0; i < sequence.row_count; ++i) {
        const int32_t row = sequence.first_row + i;
        Slot(batch, sequence, sequence.kv_len + i) =
            ContextKeyOf(batch.states[row * kHidden], batch.positions[row]);
      }
    }
    return absl::OkStatus();
  }
  absl::StatusOr<model::LogitShard> Forward(const model::Batch& batch) override {
    EXPECT_TRUE(batch.states.empty());
    rows_.clear();
    for (const model::BatchSequence& sequence : batch.sequences) {
      EXPECT_TRUE(sequence.block);
      EXPECT_EQ(sequence.row_count, kRows);
      uint64_t seen = 0;
      for (int32_t s = 0; s < sequence.kv_len; ++s) seen += Slot(batch, sequence, s);
      for (int32_t i = sequence.first_row; i < sequence.first_row + kRows; ++i) {
        const uint64_t key = RowKeyOf(batch.tokens[i], batch.positions[i]);
        Slot(batch, sequence, sequence.kv_len + i - sequence.first_row) = key;
        seen += key;
      }
      for (const int32_t i : batch.logit_rows) {
        if (i < sequence.first_row || i >= sequence.first_row + kRows) continue;
        rows_.push_back(RowOf(seen, batch.tokens[i], batch.positions[i]));
      }
    }
    std::vector<TokenId> best(rows_.size());
    std::transform(rows_.begin(), rows_.end(), best.begin(), BestOf);
    return Shard(best);
  }
  absl::StatusOr<model::LogitShard> ContinueBlock(absl::Span<const model::BlockNode> nodes,
                                                  absl::Span<const float> states) override {
    const bool recurs = played_.markov == MarkovKind::kRecurrent;
    EXPECT_EQ(states.size(), recurs ? nodes.size() : 0);
    std::vector<TokenId> best;
    next_states_.clear(), confidences_.clear();
    for (size_t i = 0; i < nodes.size(); ++i) {
      const uint64_t row = rows_.at(nodes[i].row);
      const float state = recurs ? states[i] : 0;
      best.push_back(played_.Choose(row, nodes[i].before, state));
      if (recurs) next_states_.push_back(NextStateOf(row, nodes[i].before, state));
      // Sure of the first two levels only.
      if (config_.states->block->confidence) confidences_.push_back(nodes[i].row < 2 ? .95f : .02f);
    }
    return Shard(best);
  }
  absl::Span<const float> next_states() const override { return next_states_; }
  absl::Span<const float> confidences() const override { return confidences_; }
  int written() const { return written_; }

 private:
  model::LogitShard Shard(const std::vector<TokenId>& best) {
    logits_.assign(best.size() * kVocabulary, 0.0f);
    for (size_t i = 0; i < best.size(); ++i) {
      logits_[i * kVocabulary + best[i]] = 2;
      logits_[i * kVocabulary + OtherOf(best[i])] = 1;
    }
    return {
        .data = logits_.data(), .rows = static_cast<int32_t>(best.size()), .width = kVocabulary};
  }

  const Played played_;
  int written_ = 0;
  std::vector<uint64_t> rows_;  // of the last Forward's logits
  std::vector<float> logits_, next_states_, confidences_;
};

class BlockEngineTest : public StateEngineTest {
 protected:
  explicit BlockEngineTest(Played played, bool confident = false,
                           const speculation::GrowthPolicy& growth = {.widths = {1, 1, 1}},
                           int32_t max_step_tokens = 256)
      : played_(played) {
    options_.growth = growth;
    options_.max_step_tokens = max_step_tokens;
    auto model = std::make_unique<PlayedBlocks>(played, confident);
    model_ = model.get();
    Start(std::move(model));
  }
  void ExpectChain(int32_t first, int length = 3) {
    ExpectTree(played_.Chain(text_, first, length));
  }

  const Played played_;
  PlayedBlocks* model_ = nullptr;  // the engine's
};

struct DFlashTest : BlockEngineTest {
  DFlashTest() : BlockEngineTest({}) {}
};

TEST_F(DFlashTest, DraftsABlockInOnePass) {
  SendStates(0, 6);
  Ask(text_.size());
  ExpectChain(0);
  EXPECT_EQ(engine_->stats().passes, 1u);
}

TEST_F(DFlashTest, WaitsForStatesThatComeAfterTheRequest) {
  SendStates(0, 4);
  Ask(text_.size());
  EXPECT_TRUE(replies_.empty());
  SendStates(4, 2);
  Step();
  ExpectChain(0);
}

// Nothing remains of a block but what its states make of the accepted tokens. Each position's keys
// are written once.
TEST_F(DFlashTest, WritesCommittedPositionsFromTheirStates) {
  SendStates(0, 6);
  Ask(text_.size());
  for (const int accepted : {3, 0, 1, 2, 3}) {
    const auto before = static_cast<int32_t>(text_.size());
    const size_t added = Accepted(accepted);
    SendStates(before - 1, accepted + 1);
    Ask(added);
    ExpectChain(0);
  }
  EXPECT_EQ(model_->written(), static_cast<int>(text_.size()) - 1);
}

TEST_F(DFlashTest, RepeatsARoundWhoseReplyWasLost) {
  SendStates(0, 6);
  Ask(text_.size());
  Ask(text_.size());
  ExpectChain(0);
  Ask(0);
  ExpectChain(0);
}

TEST_F(DFlashTest, StartsColdWhereStatesAreMissing) {
  SendStates(4, 2);
  Ask(text_.size());
  ExpectChain(4);
  const size_t added = Accepted(2);
  SendStates(7, 2);
  Ask(added);
  ExpectChain(7);
}

// A pass that the first level alone would not pay for gives the others too.
TEST_F(DFlashTest, GrowsWholeTreesWhateverTimeCosts) {
  cost_per_second_ = 1e12f;
  SendStates(0, 6);
  Ask(text_.size());
  ExpectChain(0);
  const auto before = static_cast<int32_t>(text_.size());
  const size_t added = Accepted(1);
  SendStates(before - 1, 2);
  Ask(added);  // the time of a pass is known
  ExpectChain(0);
}

TEST_F(DFlashTest, SequencesShareAPass) {
  for (const base::SequenceId sequence : {1, 2, 3}) SendStates(0, 6, sequence);
  for (const base::SequenceId sequence : {1, 2, 3}) Request(text_.size(), sequence);
  Step();
  EXPECT_EQ(engine_->stats().passes, 1u);
  ASSERT_EQ(replies_.size(), 3u);
  for (const schemas::DraftReply& reply : replies_) {
    EXPECT_EQ(std::vector<TokenId>(reply.tree.tokens.begin() + 1, reply.tree.tokens.end()),
              played_.Chain(text_, 0, 3));
  }
}

// Deeper than a block's last level there is nothing.
struct DeepTest : BlockEngineTest {
  DeepTest() : BlockEngineTest({}, false, {.widths = {1, 1, 1, 1, 1, 1, 1}}) {}
};
TEST_F(DeepTest, EndsWithTheBlock) {
  SendStates(0, 6);
  Ask(text_.size());
  ExpectChain(0, kRows - 1);
}

// A prompt of more positions than a pass takes, and a pass that has no room for a block.
struct SmallPassTest : BlockEngineTest {
  SmallPassTest() : BlockEngineTest({}, false, {.widths = {1, 1, 1}}, /*max_step_tokens=*/4) {}
};
TEST_F(SmallPassTest, SplitsContextAndBlock) {
  SendStates(0, 6);
  Ask(text_.size());
  ExpectChain(0);
  EXPECT_EQ(engine_->stats().passes, 3u);
}

class SequentialTest : public BlockEngineTest, public ::testing::WithParamInterface<MarkovKind> {
 protected:
  SequentialTest() : BlockEngineTest({.from_anchor = true, .markov = GetParam()}) {}
};
INSTANTIATE_TEST_SUITE_P(All, SequentialTest,
                         ::testing::Values(MarkovKind::kVanilla, MarkovKind::kGated,
                                           MarkovKind::kRecurrent));

TEST_P(SequentialTest, DraftsTokenByTokenInOnePass) {
  SendStates(0, 6);
  Ask(text_.size());
  ExpectChain(0);
  const size_t added = Accepted(1);
  SendStates(6, 2);
  Ask(added);
  ExpectChain(0);
  Ask(0);  // again
  ExpectChain(0);
  EXPECT_EQ(engine_->stats().passes, 3u);
}

// Both children of the first node are drafted, and each has a child of its own.
struct SequentialTreeTest : BlockEngineTest {
  SequentialTreeTest()
      : BlockEngineTest({.from_anchor = true, .markov = MarkovKind::kRecurrent}, false,
                        {.widths = {2, 1, 1}}) {}
};
TEST_F(SequentialTreeTest, EachPathHasScoresOfItsOwn) {
  SendStates(0, 6);
  Ask(text_.size());
  ASSERT_EQ(replies_.size(), 1u);
  const speculation::TokenTree& tree = replies_[0].tree;
  ASSERT_EQ(tree.size(), 7);
  const std::vector<TokenId> best = played_.Chain(text_, 0, 3);
  ASSERT_EQ(tree.tokens[1], best[0]);
  EXPECT_EQ(tree.tokens[2], OtherOf(best[0]));
  EXPECT_EQ(tree.tokens[3], best[1]);
  EXPECT_EQ(tree.parents[4], 2);
  EXPECT_NE(tree.tokens[4], best[1]);
  EXPECT_EQ(tree.tokens[5], best[2]);
}

// Nodes that the drafter itself takes for hopeless do not pay for their rows.
struct ConfidentTest : BlockEngineTest {
  ConfidentTest()
      : BlockEngineTest({.from_anchor = true, .markov = MarkovKind::kVanilla}, /*confident=*/true,
                        {.widths = {}, .budget = 4, .max_children = 1, .max_depth = 4}) {}
};
TEST_F(ConfidentTest, LeavesOutWhatItIsNotSureOf) {
  cost_per_row_ = .5f;  // its scores alone would leave one
  SendStates(0, 6);
  Ask(text_.size());
  ExpectChain(0, 2);
}

}  // namespace
}  // namespace specfabric::draft
