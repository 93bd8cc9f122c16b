// A parallel draft model (PARD): against the logits of its rows, run by themselves.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "draft/draft_engine.h"
#include "tests/model/checkpoint_writer.h"
#include "tests/model/passes.h"

namespace specfabric::draft {
namespace {

using base::TokenId;
using model::LogitRows;

constexpr TokenId kMask = 77;
constexpr int32_t kBlockSize = 4;

class ParallelDraftTest : public ::testing::Test {
 protected:
  ParallelDraftTest() : communicators_(model::MakeThreadCommunicators(1)) {
    model::ModelConfig config = model::OddConfig();
    config.mask_token = kMask;
    model::WriteCheckpoint(dir_.path(), config, 5);
    options_.sessions = {.kv_blocks = 64, .block_size = kBlockSize, .max_sessions = 8};
    options_.sessions.context = 128;
    options_.ahead.least_chance = 0;
  }

  void Open(std::vector<int32_t> widths) {
    options_.growth.widths = std::move(widths);
    const model::RankOptions rank = {.dtype = model::DataType::kFloat32,
                                     .kv_blocks = options_.sessions.kv_blocks,
                                     .block_size = kBlockSize};
    auto model = model::RankModel::Load(dir_.path(), rank, communicators_[0].get());
    ASSERT_TRUE(model.ok()) << model.status();
    auto oracle = model::TestGroup::Load(dir_.path(), rank, 1);
    ASSERT_TRUE(oracle.ok()) << oracle.status();
    oracle_ = std::make_unique<model::TestGroup>(*std::move(oracle));
    engine_ = std::make_unique<DraftEngine>(
        options_, *std::move(model), nullptr,
        [](const transport::Fence&) -> absl::StatusOr<transport::Lease> {
          return absl::UnavailableError("no slots");
        },
        [this](uint64_t /*peer*/, schemas::DraftReply reply, OutgoingDraftProbs /*probs*/) {
          replies_.push_back(std::move(reply));
        });
  }

  // The tree after `text`, of which the draft has been told all but the last `added` tokens.
  speculation::TokenTree Draft(const std::vector<TokenId>& text, size_t added, int max_nodes = 16) {
    schemas::DraftRequest request;
    request.target_incarnation = 3;
    request.sequence = 1;
    request.round = ++round_;
    request.base_length = static_cast<int32_t>(text.size() - added);
    request.base_hash = base::ExtendPrefixHash(
        base::kEmptyPrefixHash, absl::MakeConstSpan(text).subspan(0, text.size() - added));
    request.append_tokens.assign(text.end() - static_cast<std::ptrdiff_t>(added), text.end());
    request.max_nodes = max_nodes;
    request.verification = speculation::VerificationMethod::kCoupled;
    request.sampling.temperature = 0;
    replies_.clear();
    engine_->Accept(1, request, base::Now());
    for (int steps = 0; steps < 9 && !engine_->idle(); ++steps) {
      EXPECT_TRUE(engine_->Step().ok());
    }
    EXPECT_EQ(replies_.size(), 1u);
    if (replies_.empty()) return {};
    EXPECT_EQ(replies_[0].status, schemas::DraftStatus::kOk);
    return std::move(replies_[0].tree);
  }

  // The likeliest `width` tokens of each level: those of the last token's row, and of the masks'.
  std::vector<std::vector<TokenId>> Levels(std::vector<TokenId> text, int levels, int width) {
    const auto last = text.size() - 1;
    text.insert(text.end(), levels - 1, kMask);
    model::Batch batch;
    model::AddChain(&batch, text, 0, model::Iota(0, 32));
    const LogitRows logits = model::Logits(*oracle_, batch);
    std::vector<std::vector<TokenId>> best;
    for (int level = 0; level < levels; ++level) {
      const std::vector<float>& row = logits[last + level];
      std::vector<TokenId> tokens(row.size());
      std::iota(tokens.begin(), tokens.end(), 0);
      std::partial_sort(tokens.begin(), tokens.begin() + width, tokens.end(),
                        [&](TokenId a, TokenId b) { return row[a] > row[b]; });
      tokens.resize(width);
      best.push_back(std::move(tokens));
    }
    return best;
  }

  const model::TempDir dir_;
  std::vector<std::unique_ptr<model::Communicator>> communicators_;
  DraftEngineOptions options_;
  std::unique_ptr<model::TestGroup> oracle_;
  std::unique_ptr<DraftEngine> engine_;
  std::vector<schemas::DraftReply> replies_;
  uint32_t round_ = 0;
};

TEST_F(ParallelDraftTest, OnePassGivesAllLevels) {
  Open({1, 1, 1, 1, 1});
  std::vector<TokenId> text = model::RandomTokens(9, 1);
  size_t added = text.size();
  // As if all draft tokens were accepted, some, and none; the keys of masks are not kept.
  for (const int accepted : {5, 2, 0, 4}) {
    const uint64_t passes = engine_->stats().passes;
    const speculation::TokenTree tree = Draft(text, added);
    EXPECT_EQ(engine_->stats().passes, passes + 1);
    const auto levels = Levels(text, 5, 1);
    ASSERT_EQ(tree.size(), 6);
    for (int level = 0; level < 5; ++level) {
      EXPECT_EQ(tree.parents[level + 1], level);
      EXPECT_EQ(tree.tokens[level + 1], levels[level][0]) << text.size() << ", level " << level;
    }
    for (int i = 0; i < accepted; ++i) text.push_back(tree.tokens[i + 1]);
    text.push_back(static_cast<TokenId>(90 + accepted));  // the bonus token
    added = accepted + 1;
  }
}

// Rows do not depend on the path, so all nodes of a level have the same children.
TEST_F(ParallelDraftTest, BranchesShareALevelsCandidates) {
  Open({2, 2, 1});
  const std::vector<TokenId> text = model::RandomTokens(6, 2);
  const speculation::TokenTree tree = Draft(text, text.size());
  const auto levels = Levels(text, 3, 2);
  ASSERT_EQ(tree.size(), 1 + 2 + 4 + 4);
  const auto depths = speculation::DepthArray(tree);
  std::vector<int> of_level(4, 0);
  for (int node = 1; node < tree.size(); ++node) {
    const int level = depths[node] - 1, width = level == 2 ? 1 : 2;
    EXPECT_EQ(tree.tokens[node], levels[level][of_level[level]++ % width]) << node;
  }
  EXPECT_EQ(engine_->stats().passes, 1u);
}

TEST_F(ParallelDraftTest, TakesNoMoreLevelsThanAreAskedFor) {
  Open({});
  options_.growth.max_depth = 8;
  const std::vector<TokenId> text = model::RandomTokens(6, 3);
  const speculation::TokenTree tree = Draft(text, text.size(), /*max_nodes=*/3);
  EXPECT_EQ(tree.size(), 4);
  EXPECT_EQ(engine_->stats().passes, 1u);
}

// Each number of accepted tokens with the likeliest tokens after it is run ahead in one pass, so
// that whichever comes true needs none.
TEST_F(ParallelDraftTest, RunsNextRootsAhead) {
  Open({1, 1, 1});
  std::vector<TokenId> text = model::RandomTokens(9, 5);
  size_t added = text.size();
  for (const int accepted : {0, 3, 1, 2}) {
    const speculation::TokenTree tree = Draft(text, added);
    ASSERT_EQ(tree.size(), 4);
    while (engine_->can_go_ahead()) ASSERT_TRUE(engine_->Step().ok());
    // The likeliest token after the accepted ones that is not the tree's own.
    const auto after = Levels(text, 4, 2);
    for (int i = 0; i < accepted; ++i) text.push_back(tree.tokens[i + 1]);
    text.push_back(after[accepted][accepted < 3 ? 1 : 0]);
    added = accepted + 1;
    const uint64_t passes = engine_->stats().passes;
    const speculation::TokenTree next = Draft(text, added);
    EXPECT_EQ(engine_->stats().passes, passes) << accepted;
    const auto levels = Levels(text, 3, 1);
    ASSERT_EQ(next.size(), 4);
    for (int level = 0; level < 3; ++level) {
      EXPECT_EQ(next.tokens[level + 1], levels[level][0]) << accepted << ", level " << level;
    }
  }
}

// A prompt that takes several passes has its masks behind the last.
TEST_F(ParallelDraftTest, ALongPromptEndsWithTheMasks) {
  options_.max_step_tokens = 16;
  Open({1, 1, 1});
  const std::vector<TokenId> text = model::RandomTokens(40, 4);
  const speculation::TokenTree tree = Draft(text, text.size());
  const auto levels = Levels(text, 3, 1);
  ASSERT_EQ(tree.size(), 4);
  for (int level = 0; level < 3; ++level) EXPECT_EQ(tree.tokens[level + 1], levels[level][0]);
}

}  // namespace
}  // namespace specfabric::draft
