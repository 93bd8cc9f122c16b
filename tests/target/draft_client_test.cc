#include "target/draft_client.h"

#include <utility>

#include "base/hash.h"
#include "gtest/gtest.h"

namespace specfabric::target {
namespace {

using base::TokenId;
using schemas::DraftReply;
using schemas::DraftRequest;
using schemas::DraftStatus;

constexpr uint64_t kIncarnation = 77;

// A scheduler with one running sequence, a client, and everything it sent.
class DraftClientTest : public testing::Test {
 protected:
  DraftClientTest()
      : scheduler_(Options()),
        client_(
            {kIncarnation, 100, {}}, &scheduler_,
            [this](PeerId peer, const DraftRequest& request) {
              if (peer == broken_peer_) return absl::NotFoundError("gone");
              sent_.emplace_back(peer, request);
              return absl::OkStatus();
            },
            [this](PeerId peer, const schemas::EndSession& end) {
              ended_.emplace_back(peer, end.sequence);
            }) {}

  static scheduler::SchedulerOptions Options() {
    scheduler::SchedulerOptions options;
    options.kv_blocks = 64;
    options.vocabulary = 100;
    options.max_context = 200;
    return options;
  }

  void Up(PeerId peer) {
    schemas::Hello hello;
    hello.role = schemas::Role::kDraft;
    hello.capacity = 8;
    client_.PeerUp(peer, hello);
  }

  // Adds the sequence and runs its prefill; then a draft is wanted.
  void StartSequence() {
    scheduler::SequenceRequest request;
    request.id = 1;
    for (TokenId t = 0; t < 40; ++t) request.prompt.push_back(t);
    request.max_tokens = 100;
    ASSERT_TRUE(scheduler_.Add(std::move(request), now_).ok());
    client_.Open(1, {}, 40);
    Step({{}, {50}});
  }

  // Plans the next step, lets it emit `accepted`, and hands on what is wanted of drafts.
  scheduler::StepPlan Step(speculation::Accepted accepted) {
    auto next = scheduler_.Plan(now_);
    EXPECT_TRUE(std::holds_alternative<scheduler::StepPlan>(next));
    if (!std::holds_alternative<scheduler::StepPlan>(next)) return {};
    scheduler::StepPlan plan = std::get<scheduler::StepPlan>(std::move(next));
    scheduler::StepResult result;
    result.step = plan.step;
    result.sequences = {{1, std::move(accepted), {}, {}}};
    for (const scheduler::Event& event : scheduler_.Commit(result, now_)) {
      if (const auto* want = std::get_if<scheduler::DraftWanted>(&event)) client_.Want(*want, now_);
    }
    return plan;
  }

  DraftReply ReplyTo(const DraftRequest& request, DraftStatus status) {
    DraftReply reply;
    reply.target_incarnation = request.target_incarnation;
    reply.sequence = request.sequence;
    reply.round = request.round;
    reply.request_id = request.request_id;
    reply.status = status;
    reply.free_sessions = 4;
    return reply;
  }

  DraftReply Tree(const DraftRequest& request, std::vector<TokenId> tokens) {
    DraftReply reply = ReplyTo(request, DraftStatus::kOk);
    for (size_t i = 0; i < tokens.size(); ++i) {
      reply.parents.push_back(static_cast<int>(i));
      reply.scores.push_back(-1);
    }
    reply.tokens = std::move(tokens);
    return reply;
  }

  bool Waiting() { return std::holds_alternative<scheduler::WaitUntil>(scheduler_.Plan(now_)); }

  base::Nanos now_ = base::kSecond;
  PeerId broken_peer_ = 0;
  std::vector<std::pair<PeerId, DraftRequest>> sent_;
  std::vector<std::pair<PeerId, base::SequenceId>> ended_;
  scheduler::Scheduler scheduler_;
  DraftClient client_;
};

TEST_F(DraftClientTest, FirstRequestCarriesThePrefixAndLaterOnesOnlyWhatIsNew) {
  Up(5);
  StartSequence();
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].second.base_length, 0);
  EXPECT_EQ(sent_[0].second.base_hash, base::kEmptyPrefixHash);
  EXPECT_EQ(sent_[0].second.append_tokens.size(), 41u);
  EXPECT_EQ(sent_[0].second.prompt_length, 40);
  EXPECT_TRUE(Waiting());
  client_.OnReply(5, Tree(sent_[0].second, {60, 61}), now_);
  const auto plan = Step({{1}, {60, 62}});
  EXPECT_EQ(plan.rows(), 3);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[1].second.base_length, 41);
  EXPECT_EQ(sent_[1].second.append_tokens, (std::vector<TokenId>{60, 62}));
  EXPECT_EQ(sent_[1].second.base_hash,
            base::ExtendPrefixHash(base::kEmptyPrefixHash, sent_[0].second.append_tokens));
}

TEST_F(DraftClientTest, WithoutWorkersNobodyWaits) {
  StartSequence();
  EXPECT_TRUE(sent_.empty());
  EXPECT_EQ(client_.stats().unroutable, 1u);
  EXPECT_EQ(Step({{}, {51}}).rows(), 1);
}

TEST_F(DraftClientTest, ResyncGoesFromTheLongestKnownPoint) {
  Up(5);
  StartSequence();
  DraftReply resync = ReplyTo(sent_[0].second, DraftStatus::kNeedResync);
  const std::vector<TokenId>& tokens = *scheduler_.Committed(1);
  const auto hash = [&](int n) {
    return base::ExtendPrefixHash(base::kEmptyPrefixHash,
                                  absl::MakeConstSpan(tokens).subspan(0, n));
  };
  resync.known = {{32, 1234}, {16, hash(16)}};
  client_.OnReply(5, resync, now_);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[1].second.base_length, 16);
  EXPECT_EQ(sent_[1].second.base_hash, hash(16));
  // A second one in the round starts from nothing.
  DraftReply again = ReplyTo(sent_[1].second, DraftStatus::kNeedResync);
  again.known = {{16, hash(16)}};
  client_.OnReply(5, again, now_);
  ASSERT_EQ(sent_.size(), 3u);
  EXPECT_EQ(sent_[2].second.base_length, 0);
  EXPECT_TRUE(Waiting());
}

TEST_F(DraftClientTest, ThirdResyncGoesToAnotherWorker) {
  Up(5);
  Up(6);
  StartSequence();
  const PeerId first = sent_[0].first;
  for (int i = 0; i < 3; ++i) {
    client_.OnReply(first, ReplyTo(sent_.back().second, DraftStatus::kNeedResync), now_);
  }
  ASSERT_EQ(sent_.size(), 4u);
  EXPECT_NE(sent_[3].first, first);
  EXPECT_EQ(sent_[3].second.append_tokens.size(), 41u);
}

class RefusedRound : public DraftClientTest, public testing::WithParamInterface<DraftStatus> {};

TEST_P(RefusedRound, GoesOnPlainlyAtOnce) {
  Up(5);
  StartSequence();
  client_.OnReply(5, ReplyTo(sent_[0].second, GetParam()), now_);
  EXPECT_EQ(client_.stats().replies[static_cast<int>(GetParam())], 1u);
  EXPECT_EQ(Step({{}, {51}}).rows(), 1);
}

INSTANTIATE_TEST_SUITE_P(Statuses, RefusedRound,
                         testing::Values(DraftStatus::kBusy, DraftStatus::kDraining,
                                         DraftStatus::kTooLong, DraftStatus::kUnsupported));

TEST_F(DraftClientTest, StaleRepliesAreCountedAndDropped) {
  Up(5);
  StartSequence();
  DraftReply wrong_round = Tree(sent_[0].second, {60});
  ++wrong_round.round;
  DraftReply wrong_life = Tree(sent_[0].second, {60});
  ++wrong_life.target_incarnation;
  DraftReply wrong_id = Tree(sent_[0].second, {60});
  ++wrong_id.request_id;
  DraftReply unknown = Tree(sent_[0].second, {60});
  unknown.sequence = 99;
  for (const DraftReply& reply : {wrong_round, wrong_life, wrong_id, unknown}) {
    client_.OnReply(5, reply, now_);
  }
  client_.OnReply(6, Tree(sent_[0].second, {60}), now_);
  EXPECT_EQ(client_.stats().stale, 5u);
  EXPECT_TRUE(Waiting());
}

TEST_F(DraftClientTest, InvalidTreesAreRefusedAndTheRoundGoesOn) {
  Up(5);
  StartSequence();
  client_.OnReply(5, Tree(sent_[0].second, {60, 100}), now_);  // the vocabulary ends at 99
  EXPECT_EQ(client_.stats().invalid, 1u);
  EXPECT_EQ(Step({{}, {51}}).rows(), 1);
}

TEST_F(DraftClientTest, TreesLargerThanAskedAreRefused) {
  Up(5);
  StartSequence();
  const int asked = sent_[0].second.max_nodes;
  client_.OnReply(5, Tree(sent_[0].second, std::vector<TokenId>(asked + 1, 3)), now_);
  EXPECT_EQ(client_.stats().invalid, 1u);
}

TEST_F(DraftClientTest, DeadWorkerIsReplacedWithAFullPrefix) {
  Up(5);
  Up(6);
  StartSequence();
  const PeerId first = sent_[0].first;
  client_.PeerDown(first);
  const auto plan = Step({{}, {51}});
  EXPECT_EQ(plan.rows(), 1);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_NE(sent_[1].first, first);
  EXPECT_EQ(sent_[1].second.base_length, 0);
}

TEST_F(DraftClientTest, FailedSendCountsAsAMiss) {
  Up(5);
  broken_peer_ = 5;
  StartSequence();
  EXPECT_EQ(client_.stats().misses, 1u);
  EXPECT_EQ(Step({{}, {51}}).rows(), 1);
}

TEST_F(DraftClientTest, SilenceIsAMissOfTheWorkerOnce) {
  Up(5);
  StartSequence();
  now_ += base::kSecond;
  client_.Expire(now_);
  client_.Expire(now_);
  EXPECT_EQ(client_.stats().misses, 1u);
  EXPECT_EQ(Step({{}, {51}}).rows(), 1);
}

TEST_F(DraftClientTest, EndOfTheSequenceEndsTheSession) {
  Up(5);
  StartSequence();
  client_.Ended(1);
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_EQ(ended_[0], (std::pair<PeerId, base::SequenceId>{5, 1}));
  client_.OnReply(5, Tree(sent_[0].second, {60}), now_);
  EXPECT_EQ(client_.stats().stale, 1u);
}

}  // namespace
}  // namespace specfabric::target
