// A drafter that reads its target's hidden states. The model is played: what a row gives is a hash
// of all that it sees, so that a wrong state, token, position or key anywhere shows in the tokens.

#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/draft/state_engine.h"

namespace specfabric::draft {
namespace {

using base::TokenId;

// What a row writes to its slot.
uint64_t KeyOf(TokenId token, float state, int32_t position) {
  return Mixed(Mixed(token, static_cast<uint64_t>(state * 1024)), position);
}
// What it hands on, `seen` being the sum of the keys that it sees, its own included.
float NextStateOf(uint64_t seen) { return static_cast<float>(base::Mix64(seen + 1) % 4096); }

class PlayedEagle : public PlayedModel {
 public:
  absl::StatusOr<model::LogitShard> Forward(const model::Batch& batch) override {
    std::vector<uint64_t> seen(batch.rows());
    for (const model::BatchSequence& sequence : batch.sequences) {
      for (int32_t row = 0; row < sequence.row_count; ++row) {
        seen[sequence.first_row + row] = RunRow(batch, sequence, row);
      }
    }
    logits_.assign(batch.logit_rows.size() * kVocabulary, 0.0f);
    next_states_.clear();
    for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
      const uint64_t its = seen[batch.logit_rows[i]];
      logits_[i * kVocabulary + TokenOf(its)] = 9;
      next_states_.insert(next_states_.end(), {NextStateOf(its), 0});
    }
    return model::LogitShard{.data = logits_.data(),
                             .rows = static_cast<int32_t>(batch.logit_rows.size()),
                             .width = kVocabulary};
  }
  absl::Span<const float> next_states() const override { return next_states_; }

 private:
  uint64_t RunRow(const model::Batch& batch, const model::BatchSequence& sequence, int32_t row) {
    const int32_t at = sequence.first_row + row;
    const auto slot = [&](int32_t s) -> uint64_t& { return Slot(batch, sequence, s); };
    slot(sequence.kv_len + sequence.tree_first + row) =
        KeyOf(batch.tokens[at], batch.states[at * kHidden], batch.positions[at]);
    uint64_t seen = 0;
    for (int32_t s = 0; s < sequence.kv_len; ++s) seen += slot(s);
    for (int32_t s = 0; s < 256; ++s) {
      const uint64_t word = batch.ancestors[at * batch.mask_words + s / 64];
      const bool sees = sequence.causal ? s <= row : (word >> (s % 64) & 1) != 0;
      if (sees) seen += slot(sequence.kv_len + s);
    }
    return seen;
  }

  std::vector<float> logits_, next_states_;
};

class StateDrafterTest : public StateEngineTest {
 protected:
  StateDrafterTest() { Start(std::make_unique<PlayedEagle>()); }

  // The chain that the model gives where it has read the states from `first` on.
  std::vector<base::TokenId> Chain(int32_t first, int length) {
    const auto last = static_cast<int32_t>(text_.size()) - 1;
    uint64_t seen = 0;
    for (int32_t t = first + 1; t <= last; ++t) seen += KeyOf(text_[t], FusedOf(t - 1), t - 1);
    std::vector<base::TokenId> chain;
    for (int i = 0; i < length; ++i) {
      chain.push_back(TokenOf(seen));
      seen += KeyOf(chain.back(), NextStateOf(seen), last + i);
    }
    return chain;
  }
  void ExpectChain(int32_t first) { ExpectTree(Chain(first, 3)); }
};

TEST_F(StateDrafterTest, DraftsFromStatesThatCameBeforeTheRequest) {
  SendStates(0, 4);
  SendStates(4, 2);  // the last token has none yet
  Ask(text_.size());
  ExpectChain(0);
}

TEST_F(StateDrafterTest, WaitsForStatesThatComeAfterTheRequest) {
  Ask(text_.size());
  EXPECT_TRUE(replies_.empty());
  EXPECT_FALSE(engine_->idle());
  SendStates(0, 5);
  Step();
  EXPECT_TRUE(replies_.empty());
  SendStates(5, 1);
  Step();
  ExpectChain(0);
}

// Of committed tokens the keys come from true states, also where those of the draft tokens that
// they were are there already.
TEST_F(StateDrafterTest, RunsCommittedTokensAgainWithTheirTrueStates) {
  SendStates(0, 6);
  Ask(text_.size());
  ExpectChain(0);
  for (const int accepted : {3, 0, 1, 2, 3}) {
    const auto before = static_cast<int32_t>(text_.size());
    const size_t added = Accepted(accepted);
    SendStates(before - 1, accepted + 1);
    Ask(added);
    ExpectChain(0);
  }
}

TEST_F(StateDrafterTest, RepeatsARoundWhoseReplyWasLost) {
  SendStates(0, 6);
  Ask(text_.size());
  Ask(text_.size());
  ExpectChain(0);
  Ask(0);
  ExpectChain(0);
}

TEST_F(StateDrafterTest, StartsColdWhereStatesAreMissing) {
  SendStates(4, 2);  // those of a prefix that the target had cached, or of another worker's time
  Ask(text_.size());
  ExpectChain(4);
  const size_t added = Accepted(2);
  SendStates(7, 2);  // that of position 6 is lost: those before it are of no use
  Ask(added);
  ExpectChain(7);
  const size_t more = Accepted(1);
  SendStates(9, 2);
  Ask(more);
  ExpectChain(7);
}

TEST_F(StateDrafterTest, RollsBackAndResumes) {
  SendStates(0, 6);
  Ask(text_.size());
  Accepted(3);
  text_.resize(5);
  text_.insert(text_.end(), {50, 51});
  Ask(2);  // the text was another one: its states have not come yet
  EXPECT_TRUE(replies_.empty());
  SendStates(0, 6);
  Step();
  ExpectChain(0);
}

TEST_F(StateDrafterTest, SequencesShareAPass) {
  for (const base::SequenceId sequence : {1, 2, 3}) SendStates(0, 6, sequence);
  Ask(text_.size(), 1);
  ExpectChain(0);
  const uint64_t passes = engine_->stats().passes;
  Ask(text_.size(), 2);
  ExpectChain(0);
  EXPECT_EQ(engine_->stats().passes, passes + 3);
}

// Its session, and with it the states of the text so far, is to stay where it is.
TEST_F(StateDrafterTest, WithoutASlotForDraftProbsARoundHasNoDraftAndTheSessionStays) {
  SendStates(0, 6);
  verification_ = speculation::VerificationMethod::kRejection;
  Ask(text_.size());
  ExpectTree({});
  EXPECT_EQ(replies_[0].draft_probs_rows, 0);
  verification_ = speculation::VerificationMethod::kCoupled;
  Ask(0);
  ExpectChain(0);
}

TEST_F(StateDrafterTest, DropsStatesThatAreOfNoUse) {
  const auto add = [&](std::vector<schemas::StateRun> runs, std::vector<uint8_t> bytes) {
    const ArrivedStates arrived = {.runs = std::move(runs), .tensor = {.copy = std::move(bytes)}};
    ASSERT_TRUE(engine_->AddStates(3, arrived, base::Now()).ok());
  };
  add({{1, 0, 2}}, std::vector<uint8_t>(kLayers * 2));              // too short
  add({{1, 0, INT32_MAX}}, std::vector<uint8_t>(kLayers * 2));      // likewise
  add({}, {1});                                                     // of nothing
  add({{1, 0, 1}}, {0x80, 0x7F, 0, 0, 0, 0});                       // infinite
  add({{1, 0, 1}}, {0xC0, 0x7F, 0, 0, 0, 0});                       // not a number
  add({{1, kContext, 1}}, std::vector<uint8_t>(kLayers * 2));       // behind any text
  add({{1, INT32_MAX - 1, 1}}, std::vector<uint8_t>(kLayers * 2));  // likewise
  SendStates(0, 6);
  Ask(text_.size());
  ExpectChain(0);
  EXPECT_EQ(engine_->stats().refused_states, 2u);
}

}  // namespace
}  // namespace specfabric::draft
