#include "target/draft_pool.h"

#include <cstring>
#include <utility>
#include <variant>
#include <vector>

#include "base/bfloat16.h"
#include "base/hash.h"
#include "gtest/gtest.h"
#include "sampling/uniform.h"
#include "tests/target/deliver.h"

namespace specfabric::target {
namespace {

using base::TokenId;
using schemas::DraftReply;
using schemas::DraftRequest;
using schemas::DraftStatus;

constexpr uint64_t kIncarnation = 77;
constexpr uint32_t kSlotBytes = 5000;

// A scheduler with one running sequence, a pool with one drafter, and everything it sent.
class DraftPoolTest : public testing::Test {
 protected:
  DraftPoolTest()
      : scheduler_(Options()),
        pool_({.sessions = {kIncarnation, 100, 3, kSlotBytes}, .router = {}, .choice = {}},
              {.request =
                   [this](PeerId peer, const DraftRequest& request) {
                     if (peer == broken_peer_) return absl::NotFoundError("gone");
                     sent_.emplace_back(peer, request);
                     return absl::OkStatus();
                   },
               .end_session =
                   [this](PeerId peer, const schemas::EndSession& end) {
                     ended_.emplace_back(peer, end.sequence);
                   }}) {}

  static scheduler::SchedulerOptions Options() {
    scheduler::SchedulerOptions options;
    options.kv_blocks = 64;
    options.vocabulary = 100;
    options.max_context = 200;
    return options;
  }

  void Up(PeerId peer, std::vector<int32_t> state_layers = {}) {
    schemas::Hello hello;
    hello.state_layers = std::move(state_layers);
    hello.role = schemas::Role::kDraft;
    hello.capacity = 8;
    pool_.PeerUp(peer, hello);
  }

  void Want(const scheduler::DraftWanted& want, base::Nanos now) {
    Deliver(pool_.Want(want, *scheduler_.Committed(want.id), now), &scheduler_);
  }
  // These return whether a tree has come for the round in flight.
  bool Reply(PeerId peer, DraftReply reply, base::Nanos now) {
    const auto text = Text(reply.sequence);
    return Deliver(pool_.OnReply(peer, std::move(reply), text, now), now, &scheduler_);
  }
  bool DraftProbs(PeerId peer, transport::KeptTensor tensor, base::Nanos now) {
    const auto text = Text(tensor.fields.tag);
    return Deliver(pool_.OnDraftProbs(peer, std::move(tensor), text, now), now, &scheduler_);
  }
  absl::Span<const TokenId> Text(base::SequenceId id) const {
    const std::vector<TokenId>* text = scheduler_.Committed(id);
    return text == nullptr ? absl::Span<const TokenId>() : absl::MakeConstSpan(*text);
  }

  // Adds the sequence and runs its prefill; then a draft is wanted.
  void StartSequence() {
    scheduler::SequenceRequest request;
    request.id = 1;
    for (TokenId t = 0; t < 40; ++t) request.prompt.push_back(t);
    request.max_tokens = 100;
    request.verification = terms_.verification;
    ASSERT_TRUE(scheduler_.Add(std::move(request), now_).ok());
    pool_.Open(1, terms_);
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
    for (const scheduler::Event& event : scheduler_.Commit(&result, now_)) {
      if (const auto* want = std::get_if<scheduler::DraftWanted>(&event)) Want(*want, now_);
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

  DraftReply Chain(const DraftRequest& request, const std::vector<TokenId>& tokens) {
    DraftReply reply = ReplyTo(request, DraftStatus::kOk);
    for (TokenId token : tokens) reply.tree.Add(reply.tree.size() - 1, token, -1);
    return reply;
  }

  bool Waiting() { return std::holds_alternative<scheduler::WaitUntil>(scheduler_.Plan(now_)); }

  DraftTerms terms_ = {.prompt_length = 40};
  base::Nanos now_ = base::kSecond;
  PeerId broken_peer_ = 0;
  std::vector<std::pair<PeerId, DraftRequest>> sent_;
  std::vector<std::pair<PeerId, base::SequenceId>> ended_;
  scheduler::Scheduler scheduler_;
  DraftPool pool_;
};

// The round goes on without its draft, and the reply comes before the next round is asked for.
TEST_F(DraftPoolTest, AReplyAfterItsRoundAcknowledgesThePrefixOfThatRound) {
  Up(5);
  StartSequence();
  scheduler_.OnNoDraft(1, sent_[0].second.round);
  const auto plan = std::get<scheduler::StepPlan>(scheduler_.Plan(now_));
  scheduler::StepResult result{plan.step, {{1, {{}, {51}}, {}, {}}}};
  const auto events = scheduler_.Commit(&result, now_);
  Reply(5, Chain(sent_[0].second, {60, 61}), now_);
  for (const scheduler::Event& event : events) {
    if (const auto* want = std::get_if<scheduler::DraftWanted>(&event)) Want(*want, now_);
  }
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[1].second.base_length, 41);
  EXPECT_EQ(sent_[1].second.append_tokens, std::vector<TokenId>{51});
  EXPECT_EQ(sent_[1].second.base_hash,
            base::ExtendPrefixHash(base::kEmptyPrefixHash, sent_[0].second.append_tokens));
}

TEST_F(DraftPoolTest, FirstRequestCarriesThePrefixAndLaterOnesOnlyWhatIsNew) {
  Up(5);
  StartSequence();
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].second.base_length, 0);
  EXPECT_EQ(sent_[0].second.base_hash, base::kEmptyPrefixHash);
  EXPECT_EQ(sent_[0].second.append_tokens.size(), 41u);
  EXPECT_EQ(sent_[0].second.prompt_length, 40);
  EXPECT_TRUE(Waiting());
  Reply(5, Chain(sent_[0].second, {60, 61}), now_);
  const auto plan = Step({{1}, {60, 62}});
  EXPECT_EQ(plan.rows(), 3);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[1].second.base_length, 41);
  EXPECT_EQ(sent_[1].second.append_tokens, (std::vector<TokenId>{60, 62}));
  EXPECT_EQ(sent_[1].second.base_hash,
            base::ExtendPrefixHash(base::kEmptyPrefixHash, sent_[0].second.append_tokens));
}

TEST_F(DraftPoolTest, WithoutWorkersNoRoundWaits) {
  StartSequence();
  EXPECT_TRUE(sent_.empty());
  EXPECT_EQ(pool_.stats().unroutable, 1u);
  EXPECT_EQ(Step({{}, {51}}).rows(), 1);
}

TEST_F(DraftPoolTest, ResyncGoesFromTheLongestKnownPoint) {
  Up(5);
  StartSequence();
  DraftReply resync = ReplyTo(sent_[0].second, DraftStatus::kNeedResync);
  const std::vector<TokenId>& tokens = *scheduler_.Committed(1);
  const auto hash = [&](int n) {
    return base::ExtendPrefixHash(base::kEmptyPrefixHash,
                                  absl::MakeConstSpan(tokens).subspan(0, n));
  };
  resync.known = {{32, 1234}, {16, hash(16)}};
  Reply(5, resync, now_);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[1].second.base_length, 16);
  EXPECT_EQ(sent_[1].second.base_hash, hash(16));
  // A second one in the round starts from nothing.
  DraftReply again = ReplyTo(sent_[1].second, DraftStatus::kNeedResync);
  again.known = {{16, hash(16)}};
  Reply(5, again, now_);
  ASSERT_EQ(sent_.size(), 3u);
  EXPECT_EQ(sent_[2].second.base_length, 0);
  EXPECT_TRUE(Waiting());
}

// The text may have gone on without the draft since the request.
TEST_F(DraftPoolTest, ResyncNeverStartsBehindThePrefixThatTheRoundAskedFor) {
  Up(5);
  StartSequence();
  std::vector<TokenId> text = *scheduler_.Committed(1);
  text.push_back(51);
  DraftReply resync = ReplyTo(sent_[0].second, DraftStatus::kNeedResync);
  resync.known = {{42, base::ExtendPrefixHash(base::kEmptyPrefixHash, text)}};
  pool_.OnReply(5, resync, text, now_);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[1].second.base_length, 0);
  EXPECT_EQ(sent_[1].second.append_tokens.size(), 41u);
}

TEST_F(DraftPoolTest, ATreeIsNotCopiedBetweenTheReplyAndTheScheduler) {
  Up(5);
  StartSequence();
  DraftReply reply = Chain(sent_[0].second, {60, 61});
  const TokenId* const tokens = reply.tree.tokens.data();
  const auto event = pool_.OnReply(5, std::move(reply), Text(1), now_);
  ASSERT_TRUE(event && std::holds_alternative<DraftArrived>(*event));
  const DraftArrived& arrived = std::get<DraftArrived>(*event);
  EXPECT_EQ(arrived.draft.tree.tokens.data(), tokens);
  EXPECT_EQ(arrived.draft.tree.tokens, (std::vector<TokenId>{50, 60, 61}));
  ASSERT_TRUE(arrived.times);
  EXPECT_FALSE(arrived.extra);
}

TEST_F(DraftPoolTest, ThirdResyncGoesToAnotherWorker) {
  Up(5);
  Up(6);
  StartSequence();
  const PeerId first = sent_[0].first;
  for (int i = 0; i < 3; ++i) {
    Reply(first, ReplyTo(sent_.back().second, DraftStatus::kNeedResync), now_);
  }
  ASSERT_EQ(sent_.size(), 4u);
  EXPECT_NE(sent_[3].first, first);
  EXPECT_EQ(sent_[3].second.append_tokens.size(), 41u);
  EXPECT_EQ(ended_, (std::vector<std::pair<PeerId, base::SequenceId>>{{first, 1}}));
}

class RefusedRound : public DraftPoolTest, public testing::WithParamInterface<DraftStatus> {};

TEST_P(RefusedRound, GoesOnWithoutDraftAtOnce) {
  Up(5);
  StartSequence();
  Reply(5, ReplyTo(sent_[0].second, GetParam()), now_);
  EXPECT_EQ(pool_.stats().replies[static_cast<int>(GetParam())], 1u);
  EXPECT_EQ(Step({{}, {51}}).rows(), 1);
}

// Whether it opened a session before it refused is the worker's matter: none is left behind.
TEST_P(RefusedRound, LeavesNoSessionBehind) {
  Up(5);
  StartSequence();
  Reply(5, ReplyTo(sent_[0].second, GetParam()), now_);
  EXPECT_EQ(ended_, (std::vector<std::pair<PeerId, base::SequenceId>>{{5, 1}}));
  pool_.Ended(1);
  EXPECT_EQ(ended_.size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Statuses, RefusedRound,
                         testing::Values(DraftStatus::kBusy, DraftStatus::kDraining,
                                         DraftStatus::kTooLong, DraftStatus::kUnsupported));

// It would wait for states that do not come, and count as a miss of a worker that is well.
TEST_F(DraftPoolTest, AWorkerIsAskedOnceItHasTheStatesOfTheLastTokens) {
  const auto streams = [&](PeerId peer) {
    const auto readers = pool_.StateReadersOf(1, 41, now_);
    return readers == std::vector<PeerId>{peer};
  };
  Up(5, {1, 2});
  StartSequence();
  EXPECT_TRUE(sent_.empty());
  EXPECT_TRUE(streams(5));
  Step({{}, {51}});
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].first, 5u);
  Reply(5, Chain(sent_[0].second, {60}), now_);
  EXPECT_TRUE(streams(5));
  pool_.StatesLeftOut(5, 1);
  Step({{}, {52}});
  EXPECT_EQ(sent_.size(), 1u);
  EXPECT_EQ(pool_.stats().misses, 0u);
  EXPECT_TRUE(streams(5));
  Step({{}, {53}});
  EXPECT_EQ(sent_.size(), 2u);
  // Another worker knows nothing yet.
  Up(6, {1, 2});
  pool_.PeerDown(5);
  scheduler_.OnNoDraft(1, sent_[1].second.round);
  Step({{}, {54}});
  EXPECT_EQ(sent_.size(), 2u);
  EXPECT_TRUE(streams(6));
  Step({{}, {55}});
  ASSERT_EQ(sent_.size(), 3u);
  EXPECT_EQ(sent_[2].first, 6u);
}

TEST_F(DraftPoolTest, ThirdResyncAsksNoWorkerWithoutStates) {
  Up(5, {1, 2});
  Up(6, {1, 2});
  StartSequence();
  const PeerId first = pool_.StateReadersOf(1, 41, now_).at(0);
  Step({{}, {51}});
  ASSERT_EQ(sent_.size(), 1u);
  for (int i = 0; i < 3; ++i) {
    Reply(first, ReplyTo(sent_.back().second, DraftStatus::kNeedResync), now_);
  }
  EXPECT_EQ(sent_.size(), 3u);
  EXPECT_NE(pool_.StateReadersOf(1, 42, now_).at(0), first);
  Step({{}, {52}});
  ASSERT_EQ(sent_.size(), 4u);
  EXPECT_NE(sent_[3].first, first);
}

TEST_F(DraftPoolTest, StaleRepliesAreCountedAndDropped) {
  Up(5);
  StartSequence();
  DraftReply wrong_round = Chain(sent_[0].second, {60});
  ++wrong_round.round;
  DraftReply wrong_incarnation = Chain(sent_[0].second, {60});
  ++wrong_incarnation.target_incarnation;
  DraftReply wrong_id = Chain(sent_[0].second, {60});
  ++wrong_id.request_id;
  DraftReply unknown = Chain(sent_[0].second, {60});
  unknown.sequence = 99;
  for (const DraftReply& reply : {wrong_round, wrong_incarnation, wrong_id, unknown}) {
    Reply(5, reply, now_);
  }
  Reply(6, Chain(sent_[0].second, {60}), now_);  // it does not hold the session
  EXPECT_EQ(pool_.stats().stale, 5u);
  EXPECT_TRUE(Waiting());
}

TEST_F(DraftPoolTest, InvalidTreesAreRefusedAndTheRoundGoesOn) {
  Up(5);
  StartSequence();
  Reply(5, Chain(sent_[0].second, {60, 100}), now_);  // the vocabulary ends at 99
  EXPECT_EQ(pool_.stats().invalid, 1u);
  EXPECT_EQ(Step({{}, {51}}).rows(), 1);
}

TEST_F(DraftPoolTest, TreesLargerThanAskedAreRefused) {
  Up(5);
  StartSequence();
  const int asked = sent_[0].second.max_nodes;
  Reply(5, Chain(sent_[0].second, std::vector<TokenId>(asked + 1, 3)), now_);
  EXPECT_EQ(pool_.stats().invalid, 1u);
}

TEST_F(DraftPoolTest, DeadWorkerIsReplacedWithAFullPrefix) {
  Up(5);
  Up(6);
  StartSequence();
  const PeerId first = sent_[0].first;
  for (const NoDraft& none : pool_.PeerDown(first)) Deliver(none, &scheduler_);
  const auto plan = Step({{}, {51}});
  EXPECT_EQ(plan.rows(), 1);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_NE(sent_[1].first, first);
  EXPECT_EQ(sent_[1].second.base_length, 0);
}

TEST_F(DraftPoolTest, FailedSendCountsAsAMiss) {
  Up(5);
  broken_peer_ = 5;
  StartSequence();
  EXPECT_EQ(pool_.stats().misses, 1u);
  EXPECT_EQ(Step({{}, {51}}).rows(), 1);
}

TEST_F(DraftPoolTest, SilenceIsAMissOfTheWorkerOnce) {
  Up(5);
  StartSequence();
  now_ += base::kSecond;
  pool_.Expire(now_);
  pool_.Expire(now_);
  EXPECT_EQ(pool_.stats().misses, 1u);
  EXPECT_EQ(Step({{}, {51}}).rows(), 1);
}

TEST_F(DraftPoolTest, AReplyAfterItsRoundUpdatesTheLatencyOfItsWorker) {
  Up(5);
  StartSequence();
  const base::Nanos asked = now_;
  now_ += base::kSecond;
  Step({{}, {51}});
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(pool_.routes().at(0).latency, 0);
  now_ += base::kSecond;
  Reply(5, Chain(sent_[0].second, {60}), now_);
  EXPECT_EQ(pool_.routes().at(0).latency, now_ - asked);
  Reply(5, Chain(sent_[0].second, {60}), now_ + base::kSecond);  // once more
  EXPECT_EQ(pool_.routes().at(0).latency, now_ - asked);
}

// A step may take longer than the deadline of a reply, and the round goes on without it.
TEST_F(DraftPoolTest, ALeftRequestIsAMissOnlyAfterLongSilence) {
  Up(5);
  StartSequence();
  scheduler::DraftWanted want = {.id = 1, .round = 2, .committed = 41, .max_nodes = 4};
  for (; want.round < 4; ++want.round) {
    EXPECT_EQ(pool_.stats().misses, 0u);
    now_ += 60 * base::kMillisecond;
    want.deadline = now_ + base::kMillisecond;
    Want(want, now_);
  }
  EXPECT_EQ(sent_.size(), 3u);
  EXPECT_EQ(pool_.stats().misses, 1u);
}

TEST_F(DraftPoolTest, AnAnswerInTimePutsAWorkerBackInServiceThoughItsRoundWentOn) {
  Up(5);
  StartSequence();
  scheduler::DraftWanted want = {.id = 1, .round = 2, .committed = 41, .max_nodes = 4};
  broken_peer_ = 5;
  for (; !pool_.routes().at(0).out; ++want.round) Want(want, now_);
  broken_peer_ = 0;
  sent_.clear();
  now_ += base::kSecond;
  want.deadline = now_ + 50 * base::kMillisecond;
  Want(want, now_);
  ASSERT_EQ(sent_.size(), 1u);
  ++want.round;
  Want(want, now_ + base::kMillisecond);
  EXPECT_EQ(sent_.size(), 1u);
  EXPECT_TRUE(pool_.routes().at(0).out);
  Reply(5, Chain(sent_[0].second, {60}), now_ + 2 * base::kMillisecond);
  EXPECT_FALSE(pool_.routes().at(0).out);
}

TEST_F(DraftPoolTest, EndOfTheSequenceEndsTheSession) {
  Up(5);
  StartSequence();
  pool_.Ended(1);
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_EQ(ended_[0], (std::pair<PeerId, base::SequenceId>{5, 1}));
  Reply(5, Chain(sent_[0].second, {60}), now_);
  EXPECT_EQ(pool_.stats().stale, 1u);
}

TEST_F(DraftPoolTest, RepliesForOtherSamplingAreRefused) {
  terms_.sampling.temperature = 0.5f;
  Up(5);
  StartSequence();
  DraftReply other = Chain(sent_[0].second, {60});
  base::SamplingParams sampling = terms_.sampling;
  sampling.temperature = 0.6f;
  other.sampling_tag = schemas::SamplingTag(terms_.verification, sampling);
  EXPECT_FALSE(Reply(5, other, now_));
  EXPECT_EQ(pool_.stats().mismatched, 1u);
  EXPECT_EQ(Step({{}, {51}}).rows(), 1) << "decodes plainly";
}

// A sequence verified by rejection. Trees are chains: a row for each draft token.
class PoolDraftProbsTest : public DraftPoolTest {
 protected:
  void SetUp() override {
    terms_.verification = speculation::VerificationMethod::kRejection;
    terms_.sampling.seed = 9;
    terms_.attempt = 2;
    Up(5);
    StartSequence();
    ASSERT_EQ(sent_.size(), 1u);
  }

  DraftReply Drawn(const std::vector<TokenId>& tokens) {
    DraftReply reply = Chain(sent_.back().second, tokens);
    reply.draw = schemas::SiblingDraw::kWithoutReplacement;
    reply.draft_probs_rows = reply.tree.size() - 1;
    reply.draft_probs_entries = 100;
    return reply;
  }

  // Rows of equal draft_probs.
  transport::KeptTensor Rows(int32_t rows) {
    const DraftRequest& request = sent_.back().second;
    transport::KeptTensor tensor;
    tensor.fields = {
        {request.target_incarnation, request.round}, request.draft_probs_pool, request.sequence};
    tensor.copy.resize(rows * 200);
    const std::vector<uint16_t> row(100, base::RoundToBFloat16(0.5f));
    for (int32_t i = 0; i < rows; ++i) std::memcpy(tensor.copy.data() + i * 200, row.data(), 200);
    return tensor;
  }
};

TEST_F(PoolDraftProbsTest, TheRequestNamesPoolAndSlotSize) {
  const DraftRequest& request = sent_[0].second;
  EXPECT_EQ(request.verification, speculation::VerificationMethod::kRejection);
  EXPECT_EQ(request.draw, sampling::DrawNumber(2, 1));
  EXPECT_EQ(request.draft_probs_pool, 1) << "sequence 1 of three ranks";
  EXPECT_EQ(request.draft_probs_bytes, kSlotBytes);
}

TEST_F(PoolDraftProbsTest, TheReplyWaitsForThem) {
  EXPECT_FALSE(Reply(5, Drawn({60, 61}), now_));
  EXPECT_TRUE(Waiting());
  EXPECT_TRUE(DraftProbs(5, Rows(2), now_));
  ASSERT_NE(pool_.draft_probs(1), nullptr);
  EXPECT_EQ(pool_.draft_probs(1)->total(1), 50);
  const auto plan = Step({{}, {51}});
  EXPECT_EQ(plan.sequences[0].draft_row, (std::vector<int32_t>{-1, 0, 1}));
  EXPECT_EQ(plan.sequences[0].draw, schemas::SiblingDraw::kWithoutReplacement);
  EXPECT_EQ(pool_.stats().draft_probs, 1u);
  EXPECT_EQ(pool_.stats().draft_probs_bytes, 400u);
}

TEST_F(PoolDraftProbsTest, TheyWaitForTheReply) {
  EXPECT_FALSE(DraftProbs(5, Rows(2), now_));
  EXPECT_TRUE(Reply(5, Drawn({60, 61}), now_));
  ASSERT_NE(pool_.draft_probs(1), nullptr);
  pool_.ReleaseDraftProbs(1);
  EXPECT_EQ(pool_.draft_probs(1), nullptr);
}

TEST_F(PoolDraftProbsTest, TheNextRoundForgetsThem) {
  DraftProbs(5, Rows(1), now_);
  Reply(5, Drawn({60}), now_);
  Step({{}, {51}});
  EXPECT_EQ(pool_.draft_probs(1), nullptr);
  // What belongs to the round before counts as stale, in either order.
  transport::KeptTensor late = Rows(1);
  --late.fields.fence.round;
  EXPECT_FALSE(DraftProbs(5, std::move(late), now_));
  EXPECT_EQ(pool_.stats().stale, 1u);
}

TEST_F(PoolDraftProbsTest, FromAnotherPeerOrIncarnationAreStale) {
  EXPECT_FALSE(DraftProbs(6, Rows(1), now_));
  transport::KeptTensor other = Rows(1);
  ++other.fields.fence.incarnation;
  EXPECT_FALSE(DraftProbs(5, std::move(other), now_));
  other = Rows(1);
  ++other.fields.tag;
  EXPECT_FALSE(DraftProbs(5, std::move(other), now_));
  EXPECT_EQ(pool_.stats().stale, 3u);
}

TEST_F(PoolDraftProbsTest, DeterministicDraftTokensNeedNone) {
  DraftReply reply = Chain(sent_[0].second, {60, 61});
  reply.draw = schemas::SiblingDraw::kDeterministic;
  EXPECT_TRUE(Reply(5, reply, now_));
  EXPECT_EQ(pool_.draft_probs(1), nullptr);
  EXPECT_EQ(Step({{}, {51}}).rows(), 3);
}

TEST_F(PoolDraftProbsTest, AReplyWithoutDraftTokensNeedsNone) {
  EXPECT_TRUE(Reply(5, Drawn({}), now_));
  EXPECT_EQ(Step({{}, {51}}).rows(), 1);
}

TEST_F(PoolDraftProbsTest, DraftTokensUnderSharedNoiseAreRefused) {
  DraftReply reply = Drawn({60});
  reply.draw = schemas::SiblingDraw::kCoupledTopK;
  EXPECT_FALSE(Reply(5, reply, now_));
  EXPECT_EQ(pool_.stats().mismatched, 1u);
  EXPECT_EQ(Step({{}, {51}}).rows(), 1);
}

TEST_F(PoolDraftProbsTest, OnesThatDoNotFitTheTreeAreRefused) {
  DraftProbs(5, Rows(1), now_);
  EXPECT_FALSE(Reply(5, Drawn({60, 61}), now_)) << "two rows announced, one came";
  EXPECT_EQ(pool_.stats().invalid, 1u);
  EXPECT_EQ(pool_.draft_probs(1), nullptr);
  Step({{}, {51}});
  DraftReply reply = Drawn({60, 61});
  reply.draft_probs_rows = 1;
  DraftProbs(5, Rows(1), now_);
  EXPECT_FALSE(Reply(5, reply, now_)) << "a node has children and no row";
  EXPECT_EQ(pool_.stats().invalid, 2u);
  Step({{}, {51}});
}

TEST_F(PoolDraftProbsTest, RefusedByTheFabricTheRoundGoesOnWithoutDraft) {
  Reply(5, Drawn({60}), now_);
  Deliver(pool_.OnDraftProbsRefused(5, Rows(1).fields), &scheduler_);
  EXPECT_EQ(pool_.stats().refused_draft_probs, 1u);
  EXPECT_EQ(Step({{}, {51}}).rows(), 1);
}

}  // namespace
}  // namespace specfabric::target
