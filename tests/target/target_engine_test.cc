// What a target's leader tells its gateways besides tokens: that it lives. Ranks that only choose a
// token stand for a model.

#include "target/target_engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "metrics/registry.h"
#include "metrics/target_metrics.h"
#include "speculation/tree.h"

namespace specfabric::target {
namespace {

constexpr link::PeerId kGateway = 1, kDraft = 2, kOtherGateway = 3;
constexpr int32_t kVocabulary = 100;
constexpr std::chrono::seconds kTestTimeout{60};

class TargetEngineTest : public ::testing::Test {
 protected:
  TargetEngineTest()
      : metrics_(registry_, "modelled", speculation::kMaxVerifyNodes - 1),
        engine_(
            Options(),
            [this](const scheduler::StepPlan& plan, auto, StepTimes*,
                   scheduler::StepResult* result) { return Run(plan, result); },
            &metrics_, Outbox()),
        leader_([this] { engine_.Run(); }) {}
  ~TargetEngineTest() override {
    Hang(false);
    engine_.Stop();
    leader_.join();
  }

  static TargetEngineOptions Options() {
    TargetEngineOptions options;
    options.incarnation = 7;
    options.scheduler.vocabulary = kVocabulary;
    options.scheduler.max_context = 1 << 20;
    options.scheduler.kv_blocks = 1 << 12;
    options.scheduler.speculation = scheduler::SpeculationPolicy::kAlways;
    options.scheduler.max_draft_wait = 2 * base::kMillisecond;
    return options;
  }
  TargetOutbox Outbox() {
    TargetOutbox outbox;
    outbox.tokens = [this](link::PeerId peer, const schemas::TokensBatch& batch) {
      std::lock_guard lock(mutex_);
      (batch.sequences.empty() ? heartbeats_ : tokens_).push_back(peer);
      if (batch.load) loads_.push_back(*batch.load);
      EXPECT_EQ(batch.load.has_value(), batch.sequences.empty());
      for (const schemas::Tokens& tokens : batch.sequences) {
        if (tokens.finish != schemas::Finish::kNone) ends_[tokens.request_id] = tokens;
      }
      changed_.notify_all();
      return absl::OkStatus();
    };
    outbox.draft_request = [this](link::PeerId, const schemas::DraftRequest& request) {
      std::lock_guard lock(mutex_);
      ++drafts_wanted_;
      most_nodes_ = std::max(most_nodes_, request.max_nodes);
      return absl::OkStatus();  // and no reply ever comes
    };
    outbox.end_session = [](link::PeerId, const schemas::EndSession&) {};
    return outbox;
  }

  absl::Status Run(const scheduler::StepPlan& plan, scheduler::StepResult* result) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !hangs_; });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    result->step = plan.step;
    result->sequences.Resize(0);
    for (const scheduler::PlanSequence& sequence : plan.sequences) {
      scheduler::SequenceResult one;
      one.id = sequence.id;
      one.accepted.finite = plan.tokens[sequence.first_row] != spoilt_;
      if (sequence.samples && one.accepted.finite) one.accepted.tokens = {5};
      result->sequences.push_back(std::move(one));
    }
    return absl::OkStatus();
  }

  void Up(link::PeerId peer, schemas::Role role, const std::string& model = "") {
    schemas::Hello hello;
    hello.role = role;
    hello.model = model;
    hello.capacity = 8;
    engine_.Post(PeerUp{peer, hello});
  }
  void Submit(int32_t max_tokens, base::TokenId first = 1,
              const std::function<void(scheduler::SequenceRequest&)>& change = nullptr) {
    schemas::Submit submit;
    submit.request_id = ++requests_;
    if (change) change(submit.sequence);
    submit.sequence.prompt = {first, 2, 3};
    submit.sequence.max_tokens = max_tokens;
    ASSERT_TRUE(engine_.Post(PeerMessage{kGateway, std::move(submit)}));
  }
  // From now on, of the sequences whose prompts begin with it.
  void Spoil(base::TokenId first) {
    std::lock_guard lock(mutex_);
    spoilt_ = first;
  }
  void Hang(bool hangs) {
    std::lock_guard lock(mutex_);
    hangs_ = hangs;
    changed_.notify_all();
  }
  // Waits until so many heartbeats have gone to the peer.
  bool WaitForHeartbeats(link::PeerId peer, int64_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kTestTimeout, [&] { return Heartbeats(peer) >= count; });
  }
  bool WaitForTokens(size_t messages) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kTestTimeout, [&] { return tokens_.size() >= messages; });
  }
  int64_t Heartbeats(link::PeerId peer) const {
    return std::count(heartbeats_.begin(), heartbeats_.end(), peer);
  }
  int64_t LockedHeartbeats(link::PeerId peer) {
    std::lock_guard lock(mutex_);
    return Heartbeats(peer);
  }

  metrics::Registry registry_;
  metrics::TargetMetrics metrics_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<link::PeerId> heartbeats_,
      tokens_;                                // whom batches without and with sequences went to
  std::vector<schemas::TargetLoad> loads_;    // of the heartbeats
  std::map<uint64_t, schemas::Tokens> ends_;  // the last message of each request
  int drafts_wanted_ = 0;
  int32_t most_nodes_ = 0;  // wanted of a draft
  base::TokenId spoilt_ = base::kNoToken;
  bool hangs_ = false;
  uint64_t requests_ = 0;
  TargetEngine engine_;
  std::thread leader_;
};

TEST_F(TargetEngineTest, AGatewayIsToldAtOnceThatTheLeaderLives) {
  Up(kGateway, schemas::Role::kGateway);
  ASSERT_TRUE(WaitForHeartbeats(kGateway, 1));
  Up(kDraft, schemas::Role::kDraft);
  Up(kOtherGateway, schemas::Role::kGateway);
  ASSERT_TRUE(WaitForHeartbeats(kOtherGateway, 1));
  EXPECT_EQ(LockedHeartbeats(kGateway), 1);
  EXPECT_EQ(LockedHeartbeats(kDraft), 0);
}

TEST_F(TargetEngineTest, WhileThereIsWorkItIsToldAgainAndAgain) {
  Up(kGateway, schemas::Role::kGateway);
  Submit(1 << 15);  // a millisecond each at least
  ASSERT_TRUE(WaitForHeartbeats(kGateway, 3));
  EXPECT_TRUE(WaitForTokens(1));
}

TEST_F(TargetEngineTest, HeartbeatsSayWhatThereIsToDo) {
  Up(kGateway, schemas::Role::kGateway);
  ASSERT_TRUE(WaitForHeartbeats(kGateway, 1));
  Submit(1500);
  Submit(1500);
  std::unique_lock lock(mutex_);
  const auto said = [&](int32_t running) {
    return changed_.wait_for(lock, kTestTimeout, [&] { return loads_.back().running == running; });
  };
  EXPECT_EQ(loads_.front().running, 0);
  EXPECT_EQ(loads_.front().kv_blocks, 1 << 12);
  EXPECT_EQ(loads_.front().kv_blocks_used, 0);
  EXPECT_EQ(loads_.front().block_size, Options().scheduler.block_size);
  ASSERT_TRUE(said(2));
  EXPECT_GT(loads_.back().kv_blocks_used, 0);
  EXPECT_LT(loads_.back().kv_blocks_used, 1 << 12);
  EXPECT_EQ(loads_.back().waiting, 0);
  EXPECT_EQ(loads_.back().accepted_at.size(), speculation::kMaxVerifyNodes - 1);
  // Once more when it is done.
  ASSERT_TRUE(said(0));
  EXPECT_EQ(ends_.size(), 2u);
  EXPECT_EQ(loads_.back().kv_blocks_used, 0);
}

TEST_F(TargetEngineTest, LogitsThatAreNotFiniteEndTheirRequestWithALineThatSaysWhere) {
  Up(kGateway, schemas::Role::kGateway);
  Spoil(9);
  Submit(3);
  Submit(3, 9);
  Submit(3);
  {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, kTestTimeout, [&] { return ends_.size() == 3; }));
    EXPECT_EQ(ends_[1].finish, schemas::Finish::kLength);
    EXPECT_EQ(ends_[2].finish, schemas::Finish::kError);
    EXPECT_EQ(ends_[2].error, "the model's logits are not finite at output token 1");
    EXPECT_EQ(ends_[3].finish, schemas::Finish::kLength);
  }
  EXPECT_EQ(metrics_.not_finite.Value(), 1);
  EXPECT_EQ(metrics_.cancelled.Value(), 0);
}

TEST_F(TargetEngineTest, DraftsAreAskedForAsTheRequestAllows) {
  Up(kGateway, schemas::Role::kGateway);
  Up(kDraft, schemas::Role::kDraft, "small");
  // How many trees are asked for while a sequence of ten tokens runs.
  const auto wanted = [this](const std::function<void(scheduler::SequenceRequest&)>& change) {
    std::unique_lock lock(mutex_);
    drafts_wanted_ = most_nodes_ = 0;
    lock.unlock();
    Submit(10, 1, change);
    lock.lock();
    EXPECT_TRUE(changed_.wait_for(lock, kTestTimeout, [&] { return ends_.contains(requests_); }));
    EXPECT_EQ(ends_[requests_].finish, schemas::Finish::kLength);
    return drafts_wanted_;
  };
  EXPECT_EQ(wanted([](auto& request) { request.speculate = false; }), 0);
  EXPECT_EQ(wanted([](auto& request) { request.max_draft_tokens = 0; }), 0);
  EXPECT_EQ(wanted([](auto& request) { request.drafter = "large"; }), 0);
  EXPECT_EQ(wanted([](auto& request) { request.drafter = "ngram_lookup"; }), 0);
  EXPECT_GT(wanted([](auto& request) {
              request.drafter = "small";
              request.max_draft_tokens = 3;
            }),
            0);
  EXPECT_EQ(most_nodes_, 3);
  EXPECT_GT(wanted([](auto& request) { (void)request; }), 0);
  EXPECT_GT(most_nodes_, 3);
}

// The leader hangs until its inbox is full, and the gateways it works for come and go meanwhile.
TEST_F(TargetEngineTest, PeersThatComeAndGoWhileTheInboxIsFullAreNotMissed) {
  Up(kGateway, schemas::Role::kGateway);
  ASSERT_TRUE(WaitForHeartbeats(kGateway, 1));
  Hang(true);
  Submit(1 << 14);
  ASSERT_TRUE(WaitForHeartbeats(kGateway, 2));
  Submit(1 << 14);
  size_t taken = 0;
  while (engine_.Post(PeerMessage{kGateway, schemas::Cancel{12345, 0}})) ++taken;
  EXPECT_LE(taken, TargetEngine::kInboxSize);
  EXPECT_FALSE(engine_.Post(DraftProbsRefused{kDraft, {}}));
  engine_.Post(PeerDown{kGateway});
  Up(kOtherGateway, schemas::Role::kGateway);
  EXPECT_FALSE(engine_.Post(PeerMessage{kGateway, schemas::Cancel{12345, 0}}));
  Hang(false);
  // What the first has submitted before is cancelled, and the other is known.
  ASSERT_TRUE(WaitForHeartbeats(kOtherGateway, 1));
  const auto cancelled = [this] { return metrics_.cancelled.Value(); };
  const base::Nanos deadline = base::Now() + 60 * base::kSecond;
  while (cancelled() < 2 && base::Now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(cancelled(), 2);
}

TEST_F(TargetEngineTest, AHangingStepIsSilentAlsoTowardsNewConnections) {
  Up(kGateway, schemas::Role::kGateway);
  ASSERT_TRUE(WaitForHeartbeats(kGateway, 1));
  Hang(true);
  Submit(1);
  // The heartbeat before the step that hangs.
  ASSERT_TRUE(WaitForHeartbeats(kGateway, 2));
  Up(kOtherGateway, schemas::Role::kGateway);
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  EXPECT_EQ(LockedHeartbeats(kGateway), 2);
  EXPECT_EQ(LockedHeartbeats(kOtherGateway), 0);
  Hang(false);
  EXPECT_TRUE(WaitForHeartbeats(kOtherGateway, 1));
  EXPECT_TRUE(WaitForTokens(1));
}

}  // namespace
}  // namespace specfabric::target
