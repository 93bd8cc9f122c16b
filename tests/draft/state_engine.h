#ifndef SPECFABRIC_TESTS_DRAFT_STATE_ENGINE_H_
#define SPECFABRIC_TESTS_DRAFT_STATE_ENGINE_H_

// A draft engine with a drafter that reads its target's hidden states, and a target that is played.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bfloat16.h"
#include "base/hash.h"
#include "draft/draft_engine.h"
#include "gtest/gtest.h"

namespace specfabric::draft {

constexpr int32_t kVocabulary = 997, kHidden = 2, kLayers = 3, kBlockSize = 4, kBlocks = 256,
                  kContext = 256;

// States are small whole numbers, which bfloat16 has.
inline float StateAt(int32_t position, int32_t i) {
  return static_cast<float>((position * 7 + i) % 128);
}
inline uint64_t Mixed(uint64_t a, uint64_t b) { return base::Mix64(a ^ base::Mix64(b)); }
inline base::TokenId TokenOf(uint64_t seen) {
  return static_cast<base::TokenId>(base::Mix64(seen) % kVocabulary);
}
inline float FusedOf(int32_t position) {
  float sum = 0;
  for (int32_t i = 0; i < kLayers; ++i) sum += StateAt(position, i);
  return sum;
}

// A drafter whose fused state is the sum of the target's. What its rows give is a subclass's
// matter.
class PlayedModel : public model::RankModel {
 public:
  PlayedModel() : slots_(kBlocks * kBlockSize) {
    config_.vocabulary = kVocabulary;
    config_.hidden = kHidden;
    config_.states.emplace();
    config_.states->layers = {0, 1, 2};
    config_.states->target_hidden = 1;
  }
  const model::ModelConfig& config() const override { return config_; }
  const model::RankOptions& options() const override { return options_; }
  absl::Status FuseStates(absl::Span<const float> states, int rows, float* fused) override {
    for (int row = 0; row < rows; ++row) {
      const auto its = states.subspan(row * kLayers, kLayers);
      fused[row * kHidden] = its[0] + its[1] + its[2];
      fused[row * kHidden + 1] = 0;
    }
    return absl::OkStatus();
  }
  void MoveKv(absl::Span<const model::KvMove> moves) override {
    for (const model::KvMove& move : moves) slots_[move.to] = slots_[move.from];
  }
  uint64_t NumericsFingerprint() const override { return 1; }
  int64_t KvBlockBytes() const override { return 0; }

 protected:
  uint64_t& Slot(const model::Batch& batch, const model::BatchSequence& sequence, int32_t slot) {
    const int32_t block = batch.blocks[sequence.first_block + slot / kBlockSize];
    return slots_[block * kBlockSize + slot % kBlockSize];
  }

  model::ModelConfig config_;
  model::RankOptions options_;
  std::vector<uint64_t> slots_;
};

class StateEngineTest : public ::testing::Test {
 protected:
  StateEngineTest() {
    options_.sessions = {.kv_blocks = kBlocks, .block_size = kBlockSize, .max_sessions = 8};
    options_.sessions.context = kContext;
    options_.growth.widths = {1, 1, 1};
  }

  void Start(std::unique_ptr<model::RankModel> model) {
    engine_ = std::make_unique<DraftEngine>(
        options_, std::move(model), nullptr,
        [](const transport::Fence&) -> absl::StatusOr<transport::Lease> {
          return absl::ResourceExhaustedError("no slot is free");
        },
        [this](uint64_t /*peer*/, schemas::DraftReply reply, OutgoingDraftProbs /*probs*/) {
          replies_.push_back(std::move(reply));
        });
  }

  void SendStates(int32_t first, int32_t count, base::SequenceId sequence = 1) {
    ArrivedStates arrived = {.runs = {{sequence, first, count}}, .tensor = {}};
    for (int32_t position = first; position < first + count; ++position) {
      for (int32_t i = 0; i < kLayers; ++i) {
        const uint16_t bits = base::RoundToBFloat16(StateAt(position, i));
        arrived.tensor.copy.push_back(bits & 0xFF);
        arrived.tensor.copy.push_back(bits >> 8);
      }
    }
    ASSERT_TRUE(engine_->AddStates(3, arrived, base::Now()).ok());
  }

  // Asks for a tree after text_, of which the draft has been told all but the last `added` tokens.
  void Ask(size_t added, base::SequenceId sequence = 1) {
    replies_.clear();
    Request(added, sequence);
    Step();
  }
  void Request(size_t added, base::SequenceId sequence) {
    schemas::DraftRequest request;
    request.target_incarnation = 3;
    request.sequence = sequence;
    request.round = ++round_;
    request.base_length = static_cast<int32_t>(text_.size() - added);
    request.base_hash = base::ExtendPrefixHash(
        base::kEmptyPrefixHash, absl::MakeConstSpan(text_).subspan(0, text_.size() - added));
    request.append_tokens.assign(text_.end() - static_cast<std::ptrdiff_t>(added), text_.end());
    request.max_nodes = 16;
    request.time_budget = base::kSecond;
    request.verification = verification_;
    request.sampling.temperature =
        verification_ == speculation::VerificationMethod::kCoupled ? 0 : 1;
    request.cost_per_row = cost_per_row_;
    request.cost_per_second = cost_per_second_;
    engine_->Accept(1, request, base::Now());
  }
  void Step() {
    for (int i = 0; i < 99 && engine_->can_step(); ++i) ASSERT_TRUE(engine_->Step().ok());
    EXPECT_FALSE(engine_->can_step());
    std::string why;
    EXPECT_TRUE(engine_->sessions().Check(&why)) << why;
  }

  void ExpectTree(const std::vector<base::TokenId>& chain) {
    ASSERT_EQ(replies_.size(), 1u);
    ASSERT_EQ(replies_[0].status, schemas::DraftStatus::kOk);
    const auto& tokens = replies_[0].tree.tokens;
    EXPECT_EQ(std::vector<base::TokenId>(tokens.begin() + 1, tokens.end()), chain);
  }
  // The target accepts so many of the tree's tokens, and chooses another one after them.
  size_t Accepted(int accepted) {
    const auto tokens = replies_.at(0).tree.tokens;
    for (int i = 0; i < accepted; ++i) text_.push_back(tokens[i + 1]);
    text_.push_back(static_cast<base::TokenId>(text_.size()));
    return accepted + 1;
  }

  DraftEngineOptions options_;
  std::unique_ptr<DraftEngine> engine_;
  std::vector<schemas::DraftReply> replies_;
  std::vector<base::TokenId> text_ = {5, 6, 7, 8, 9, 10, 11};
  float cost_per_row_ = 0, cost_per_second_ = 0;
  speculation::VerificationMethod verification_ = speculation::VerificationMethod::kCoupled;
  uint32_t round_ = 0;
};

}  // namespace specfabric::draft

#endif  // SPECFABRIC_TESTS_DRAFT_STATE_ENGINE_H_
