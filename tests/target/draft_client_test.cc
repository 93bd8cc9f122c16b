#include "target/draft_client.h"

#include <cstring>
#include <utility>

#include "base/bfloat16.h"
#include "base/hash.h"
#include "gtest/gtest.h"
#include "sampling/uniform.h"

namespace specfabric::target {
namespace {

using base::TokenId;
using schemas::DraftReply;
using schemas::DraftRequest;
using schemas::DraftStatus;

constexpr uint64_t kIncarnation = 77;
constexpr uint32_t kSlotBytes = 5000;

// A scheduler with one running sequence, a client, and everything it sent.
class DraftClientTest : public testing::Test {
 protected:
  DraftClientTest()
      : scheduler_(Options()),
        client_(
            {kIncarnation, 100, {}, 3, kSlotBytes}, &scheduler_,
            [this](PeerId peer, const DraftRequest& request) {
              if (peer == broken_peer_) return absl::NotFoundError("gone");
              sent_.emplace_back(peer, request);
              return absl::OkStatus();
            },
            [this](PeerId peer, const schemas::EndSession& end) {
              ended_.emplace_back(peer, end.sequence);
            },
            {.draft =
                 [this](base::SequenceId id, uint32_t round, speculation::Draft draft,
                        base::Nanos now) { scheduler_.OnDraft(id, round, std::move(draft), now); },
             .none = [this](base::SequenceId id,
                            uint32_t round) { scheduler_.OnNoDraft(id, round); }}) {}

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
    request.verification = terms_.verification;
    ASSERT_TRUE(scheduler_.Add(std::move(request), now_).ok());
    client_.Open(1, terms_);
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
    reply.sampling_tag = schemas::SamplingTag(request.verification, request.sampling);
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

  DraftTerms terms_ = {.prompt_length = 40};
  base::Nanos now_ = base::kSecond;
  PeerId broken_peer_ = 0;
  std::vector<std::pair<PeerId, DraftRequest>> sent_;
  std::vector<std::pair<PeerId, base::SequenceId>> ended_;
  scheduler::Scheduler scheduler_;
  DraftClient client_;
};

// Another drafter has the round that follows.
TEST_F(DraftClientTest, AReplyAfterItsRoundSaysWhatTheWorkerHeldThen) {
  Up(5);
  StartSequence();
  scheduler_.OnNoDraft(1, sent_[0].second.round);
  const auto plan = std::get<scheduler::StepPlan>(scheduler_.Plan(now_));
  const auto events = scheduler_.Commit({plan.step, {{1, {{}, {51}}, {}, {}}}}, now_);
  client_.OnReply(5, Tree(sent_[0].second, {60, 61}), now_);
  for (const scheduler::Event& event : events) {
    if (const auto* want = std::get_if<scheduler::DraftWanted>(&event)) client_.Want(*want, now_);
  }
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[1].second.base_length, 41);
  EXPECT_EQ(sent_[1].second.append_tokens, std::vector<TokenId>{51});
  EXPECT_EQ(sent_[1].second.base_hash,
            base::ExtendPrefixHash(base::kEmptyPrefixHash, sent_[0].second.append_tokens));
}

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

TEST_F(DraftClientTest, AReplyThatComesAfterItsRoundShowsHowSlowItsWorkerIs) {
  Up(5);
  StartSequence();
  const base::Nanos asked = now_;
  now_ += base::kSecond;
  Step({{}, {51}});
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(client_.routes().at(0).latency, 0);
  now_ += base::kSecond;
  client_.OnReply(5, Tree(sent_[0].second, {60}), now_);
  EXPECT_EQ(client_.routes().at(0).latency, now_ - asked);
  client_.OnReply(5, Tree(sent_[0].second, {60}), now_ + base::kSecond);  // once more
  EXPECT_EQ(client_.routes().at(0).latency, now_ - asked);
}

// A step may take longer than a reply may, which nobody waits for then.
TEST_F(DraftClientTest, OnlyLongSilenceIsHeldAgainstAWorkerThatNobodyWaitsFor) {
  Up(5);
  StartSequence();
  scheduler::DraftWanted want = {.id = 1, .round = 2, .committed = 41, .max_nodes = 4};
  for (; want.round < 4; ++want.round) {
    EXPECT_EQ(client_.stats().misses, 0u);
    now_ += 60 * base::kMillisecond;
    want.deadline = now_ + base::kMillisecond;
    client_.Want(want, now_);
  }
  EXPECT_EQ(sent_.size(), 3u);
  EXPECT_EQ(client_.stats().misses, 1u);
}

TEST_F(DraftClientTest, AWorkerThatAnswersInTimeServesThoughNobodyWaitedForIt) {
  Up(5);
  StartSequence();
  scheduler::DraftWanted want = {.id = 1, .round = 2, .committed = 41, .max_nodes = 4};
  broken_peer_ = 5;
  for (; !client_.routes().at(0).out; ++want.round) client_.Want(want, now_);
  broken_peer_ = 0;
  sent_.clear();
  now_ += base::kSecond;
  want.deadline = now_ + 50 * base::kMillisecond;
  client_.Want(want, now_);
  ASSERT_EQ(sent_.size(), 1u);
  ++want.round;
  client_.Want(want, now_ + base::kMillisecond);
  EXPECT_EQ(sent_.size(), 1u);
  EXPECT_TRUE(client_.routes().at(0).out);
  client_.OnReply(5, Tree(sent_[0].second, {60}), now_ + 2 * base::kMillisecond);
  EXPECT_FALSE(client_.routes().at(0).out);
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

TEST_F(DraftClientTest, RepliesForOtherSamplingAreRefused) {
  terms_.sampling.temperature = 0.5f;
  Up(5);
  StartSequence();
  DraftReply other = Tree(sent_[0].second, {60});
  base::SamplingParams sampling = terms_.sampling;
  sampling.temperature = 0.6f;
  other.sampling_tag = schemas::SamplingTag(terms_.verification, sampling);
  EXPECT_FALSE(client_.OnReply(5, other, now_));
  EXPECT_EQ(client_.stats().mismatched, 1u);
  EXPECT_EQ(Step({{}, {51}}).rows(), 1) << "decodes plainly";
}

// A sequence verified by rejection. Trees are chains: a row for each guess.
class DraftProbsTest : public DraftClientTest {
 protected:
  void SetUp() override {
    terms_.verification = speculation::VerificationMethod::kRejection;
    terms_.sampling.seed = 9;
    terms_.attempt = 2;
    Up(5);
    StartSequence();
    ASSERT_EQ(sent_.size(), 1u);
  }

  DraftReply Drawn(std::vector<TokenId> tokens) {
    DraftReply reply = Tree(sent_.back().second, std::move(tokens));
    reply.draw = schemas::SiblingDraw::kWithoutReplacement;
    reply.draft_probs_rows = static_cast<int32_t>(reply.tokens.size());
    reply.draft_probs_entries = 100;
    return reply;
  }

  // Rows of equal draft_probs.
  DraftProbsTensor Rows(int32_t rows) {
    const DraftRequest& request = sent_.back().second;
    DraftProbsTensor tensor;
    tensor.fields = {
        {request.target_incarnation, request.round}, request.draft_probs_pool, request.sequence};
    tensor.copy.resize(rows * 200);
    const std::vector<uint16_t> row(100, base::RoundToBFloat16(0.5f));
    for (int32_t i = 0; i < rows; ++i) std::memcpy(tensor.copy.data() + i * 200, row.data(), 200);
    return tensor;
  }
};

TEST_F(DraftProbsTest, TheRequestSaysWhereTheyGo) {
  const DraftRequest& request = sent_[0].second;
  EXPECT_EQ(request.verification, speculation::VerificationMethod::kRejection);
  EXPECT_EQ(request.draw, sampling::DrawNumber(2, 1));
  EXPECT_EQ(request.draft_probs_pool, 1) << "sequence 1 of three ranks";
  EXPECT_EQ(request.draft_probs_bytes, kSlotBytes);
}

TEST_F(DraftProbsTest, TheReplyWaitsForThem) {
  EXPECT_FALSE(client_.OnReply(5, Drawn({60, 61}), now_));
  EXPECT_TRUE(Waiting());
  EXPECT_TRUE(client_.OnDraftProbs(5, Rows(2), now_));
  ASSERT_NE(client_.draft_probs(1), nullptr);
  EXPECT_EQ(client_.draft_probs(1)->total(1), 50);
  const auto plan = Step({{}, {51}});
  EXPECT_EQ(plan.sequences[0].draft_row, (std::vector<int32_t>{-1, 0, 1}));
  EXPECT_EQ(plan.sequences[0].draw, schemas::SiblingDraw::kWithoutReplacement);
  EXPECT_EQ(client_.stats().draft_probs, 1u);
  EXPECT_EQ(client_.stats().draft_probs_bytes, 400u);
}

TEST_F(DraftProbsTest, TheyWaitForTheReply) {
  EXPECT_FALSE(client_.OnDraftProbs(5, Rows(2), now_));
  EXPECT_TRUE(client_.OnReply(5, Drawn({60, 61}), now_));
  ASSERT_NE(client_.draft_probs(1), nullptr);
  client_.ReleaseDraftProbs(1);
  EXPECT_EQ(client_.draft_probs(1), nullptr);
}

TEST_F(DraftProbsTest, TheNextRoundForgetsThem) {
  client_.OnDraftProbs(5, Rows(1), now_);
  client_.OnReply(5, Drawn({60}), now_);
  Step({{}, {51}});
  EXPECT_EQ(client_.draft_probs(1), nullptr);
  // What belongs to the round before counts as stale, in either order.
  DraftProbsTensor late = Rows(1);
  --late.fields.fence.round;
  EXPECT_FALSE(client_.OnDraftProbs(5, std::move(late), now_));
  EXPECT_EQ(client_.stats().stale, 1u);
}

TEST_F(DraftProbsTest, OfAnotherPeerOrLifeAreStale) {
  EXPECT_FALSE(client_.OnDraftProbs(6, Rows(1), now_));
  DraftProbsTensor other = Rows(1);
  ++other.fields.fence.incarnation;
  EXPECT_FALSE(client_.OnDraftProbs(5, std::move(other), now_));
  other = Rows(1);
  ++other.fields.tag;
  EXPECT_FALSE(client_.OnDraftProbs(5, std::move(other), now_));
  EXPECT_EQ(client_.stats().stale, 3u);
}

TEST_F(DraftProbsTest, DeterministicDraftTokensNeedNone) {
  DraftReply reply = Tree(sent_[0].second, {60, 61});
  reply.draw = schemas::SiblingDraw::kDeterministic;
  EXPECT_TRUE(client_.OnReply(5, reply, now_));
  EXPECT_EQ(client_.draft_probs(1), nullptr);
  EXPECT_EQ(Step({{}, {51}}).rows(), 3);
}

TEST_F(DraftProbsTest, AReplyWithoutDraftTokensNeedsNone) {
  EXPECT_TRUE(client_.OnReply(5, Drawn({}), now_));
  EXPECT_EQ(Step({{}, {51}}).rows(), 1);
}

TEST_F(DraftProbsTest, DraftTokensUnderSharedNoiseAreRefused) {
  DraftReply reply = Drawn({60});
  reply.draw = schemas::SiblingDraw::kCoupledTopK;
  EXPECT_FALSE(client_.OnReply(5, reply, now_));
  EXPECT_EQ(client_.stats().mismatched, 1u);
  EXPECT_EQ(Step({{}, {51}}).rows(), 1);
}

TEST_F(DraftProbsTest, OnesThatDoNotFitTheTreeAreRefused) {
  client_.OnDraftProbs(5, Rows(1), now_);
  EXPECT_FALSE(client_.OnReply(5, Drawn({60, 61}), now_)) << "two rows announced, one came";
  EXPECT_EQ(client_.stats().invalid, 1u);
  EXPECT_EQ(client_.draft_probs(1), nullptr);
  Step({{}, {51}});
  DraftReply reply = Drawn({60, 61});
  reply.draft_probs_rows = 1;
  client_.OnDraftProbs(5, Rows(1), now_);
  EXPECT_FALSE(client_.OnReply(5, reply, now_)) << "a node has children and no row";
  EXPECT_EQ(client_.stats().invalid, 2u);
  Step({{}, {51}});
}

TEST_F(DraftProbsTest, RefusedByTheFabricTheRoundGoesOnPlainly) {
  client_.OnReply(5, Drawn({60}), now_);
  client_.OnDraftProbsRefused(5, Rows(1).fields);
  EXPECT_EQ(client_.stats().refused_draft_probs, 1u);
  EXPECT_EQ(Step({{}, {51}}).rows(), 1);
}

}  // namespace
}  // namespace specfabric::target
