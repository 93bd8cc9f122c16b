#include "gateway/dispatcher.h"

#include <optional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "metrics/registry.h"

namespace specfabric::gateway {
namespace {

using base::kSecond;
using link::PeerId;
using schemas::Finish;
using schemas::Submit;
using schemas::Tokens;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<base::TokenId>;

// A dispatcher whose messages and results are recorded.
class DispatcherTest : public ::testing::Test {
 protected:
  struct Outcome {
    Ids tokens;
    Finish finish = Finish::kNone;
    std::optional<ApiError> error;
    ChoiceRecord record;
    int ends = 0;
  };

  DispatcherTest() : metrics_(registry_) { Make({}); }

  void Make(DispatcherOptions options) {
    dispatcher_.emplace(
        options,
        TargetSender{
            [this](PeerId peer, const Submit& submit) {
              if (!send_status_.ok() && peer == broken_) return send_status_;
              sent_.emplace_back(peer, submit);
              return absl::OkStatus();
            },
            [this](PeerId peer, const schemas::Cancel& cancel) {
              cancelled_.emplace_back(peer, cancel.request_id, cancel.attempt);
            },
            [this](PeerId peer) { closed_.push_back(peer); },
            [this](Submit submit) { discarded_.push_back(std::move(submit.sequence.prompt)); }},
        &metrics_);
  }

  void Up(PeerId peer, uint64_t fingerprint = 7, base::Nanos now = 0) {
    schemas::Hello hello;
    hello.incarnation = 77;
    hello.numerics_fingerprint = fingerprint;
    hello.context = 100;
    dispatcher_->OnUp(peer, hello, now);
  }

  uint64_t Start(Outcome& outcome, base::Nanos now = 0, int max_tokens = 50, TimeLimit limit = {}) {
    Submit submit;
    submit.sequence.prompt = prompt_;
    submit.sequence.max_tokens = max_tokens;
    auto id = std::make_shared<uint64_t>(0);
    ChoiceSink sink;
    sink.tokens = [this, &outcome, id](const Tokens& news) {
      outcome.tokens.insert(outcome.tokens.end(), news.tokens.begin(), news.tokens.end());
      outcome.finish = news.finish;
      if (news.finish != Finish::kNone) {
        ++outcome.ends;
        outcome.record = dispatcher_->Record(*id);
      }
    };
    sink.failed = [&outcome](ApiError error) {
      ++outcome.ends;
      outcome.error = std::move(error);
    };
    *id = dispatcher_->Start(std::move(submit), std::move(sink), now, limit);
    return *id;
  }

  void Send(PeerId peer, uint64_t id, uint32_t attempt, int32_t first, Ids tokens,
            Finish finish = Finish::kNone, std::string error = "", base::Nanos now = 0) {
    Tokens message;
    message.request_id = id;
    message.attempt = attempt;
    message.first_index = first;
    message.tokens = std::move(tokens);
    message.finish = finish;
    message.error = std::move(error);
    dispatcher_->OnBatch(peer, {{std::move(message)}}, now);
  }

  metrics::Registry registry_;
  metrics::GatewayMetrics metrics_;
  std::optional<Dispatcher> dispatcher_;
  std::vector<std::pair<PeerId, Submit>> sent_;
  std::vector<std::tuple<PeerId, uint64_t, uint32_t>> cancelled_;
  std::vector<PeerId> closed_;
  std::vector<Ids> discarded_;
  Ids prompt_ = {1, 2};  // of what Start submits
  absl::Status send_status_;
  PeerId broken_ = 0;
};

TEST_F(DispatcherTest, PassesOnTokensAndTheEnd) {
  Up(1);
  Outcome outcome;
  const uint64_t id = Start(outcome);
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].second.request_id, id);
  Send(1, id, 0, 0, {5, 6});
  EXPECT_EQ(outcome.finish, Finish::kNone);
  Send(1, id, 0, 2, {7}, Finish::kStop);
  EXPECT_EQ(outcome.tokens, Ids({5, 6, 7}));
  EXPECT_EQ(outcome.finish, Finish::kStop);
  EXPECT_EQ(outcome.ends, 1);
  EXPECT_TRUE(outcome.record.exact);
  EXPECT_EQ(outcome.record.fingerprint, 7u);
  EXPECT_EQ(dispatcher_->choices(), 0u);
}

TEST_F(DispatcherTest, PicksTheTargetWithTheFewestSequences) {
  Up(1);
  Up(2);
  std::vector<Outcome> outcomes(6);
  std::vector<uint64_t> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(Start(outcomes[i]));
  EXPECT_NE(sent_[0].first, sent_[1].first);
  EXPECT_NE(sent_[2].first, sent_[3].first);
  // Both of target 1 end: it gets the next two.
  for (int i = 0; i < 4; ++i) {
    if (sent_[i].first == 1) Send(1, ids[i], 0, 0, {}, Finish::kLength);
  }
  Start(outcomes[4]);
  Start(outcomes[5]);
  EXPECT_EQ(sent_[4].first, 1u);
  EXPECT_EQ(sent_[5].first, 1u);
}

TEST_F(DispatcherTest, WorkOfALostTargetContinuesOnAnother) {
  Up(1);
  Outcome outcome;
  const uint64_t id = Start(outcome);
  Up(2);
  Send(1, id, 0, 0, {5, 6});
  dispatcher_->OnDown(1, 0);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[1].first, 2u);
  EXPECT_EQ(sent_[1].second.sequence.attempt, 1u);
  EXPECT_EQ(sent_[1].second.sequence.generated, Ids({5, 6}));
  EXPECT_EQ(sent_[1].second.sequence.sampling, sent_[0].second.sequence.sampling);
  Send(1, id, 0, 2, {99});  // late, of the lost target
  Send(2, id, 1, 2, {7}, Finish::kLength);
  EXPECT_EQ(outcome.tokens, Ids({5, 6, 7}));
  EXPECT_TRUE(outcome.record.exact);
  EXPECT_EQ(metrics_.resubmissions.Value(), 1);
  EXPECT_EQ(metrics_.stale_tokens.Value(), 1);
}

TEST_F(DispatcherTest, PrefersTargetsWithTheFirstOnesNumerics) {
  Up(1, 7);
  Outcome outcome;
  const uint64_t id = Start(outcome);
  Send(1, id, 0, 0, {5});
  Up(2, 8);
  Up(3, 7);
  dispatcher_->OnDown(1, 0);
  EXPECT_EQ(sent_.back().first, 3u);
  dispatcher_->OnDown(3, 0);
  EXPECT_EQ(sent_.back().first, 2u);
  Send(2, id, 2, 1, {6}, Finish::kLength);
  EXPECT_FALSE(outcome.record.exact);
}

TEST_F(DispatcherTest, WithoutAFingerprintOnlyTheDistributionIsExact) {
  Up(1, 0);
  Outcome outcome;
  const uint64_t id = Start(outcome);
  Send(1, id, 0, 0, {5}, Finish::kLength);
  EXPECT_FALSE(outcome.record.exact);
}

TEST_F(DispatcherTest, FailsIfNoTargetConnectsInTime) {
  Outcome patient, timed_out;
  Start(patient, 0);
  EXPECT_TRUE(sent_.empty());
  dispatcher_->Tick(4 * kSecond);
  Up(1, 7, 4 * kSecond);
  EXPECT_EQ(sent_.size(), 1u);
  dispatcher_->OnDown(1, 4 * kSecond);
  Start(timed_out, 5 * kSecond);
  dispatcher_->Tick(9 * kSecond);
  EXPECT_EQ(patient.error.value().status, 503);
  EXPECT_FALSE(timed_out.error.has_value());
  dispatcher_->Tick(10 * kSecond);
  EXPECT_EQ(timed_out.error.value().status, 503);
  EXPECT_EQ(timed_out.ends, 1);
}

TEST_F(DispatcherTest, AnOverloadedTargetsRequestGoesToAnother) {
  Up(1);
  Up(2);
  Outcome outcome;
  const uint64_t id = Start(outcome);
  const PeerId first = sent_[0].first;
  Send(first, id, 0, 0, {}, Finish::kOverloaded, "queue full");
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_NE(sent_[1].first, first);
  Send(sent_[1].first, id, 1, 0, {}, Finish::kOverloaded, "queue full");
  ASSERT_TRUE(outcome.error.has_value());
  EXPECT_EQ(outcome.error->status, 429);
  EXPECT_THAT(outcome.error->message, HasSubstr("queue full"));
  EXPECT_EQ(outcome.ends, 1);
}

TEST_F(DispatcherTest, ADrainingTargetFinishesItsSequences) {
  Up(1);
  Outcome old_one, new_one, given_back;
  const uint64_t id = Start(old_one);
  Up(2);
  dispatcher_->OnDrain(1);
  Start(new_one);
  EXPECT_EQ(sent_.back().first, 2u);
  Send(1, id, 0, 0, {5}, Finish::kLength);
  EXPECT_EQ(old_one.tokens, Ids({5}));
  const uint64_t last = Start(given_back);
  Send(2, last, 0, 0, {}, Finish::kDraining);
  EXPECT_FALSE(given_back.error.has_value());
  Up(3);
  EXPECT_EQ(sent_.back().first, 3u);
  EXPECT_EQ(sent_.back().second.request_id, last);
}

TEST_F(DispatcherTest, ARejectionIsABadRequest) {
  Up(1);
  Outcome outcome;
  const uint64_t id = Start(outcome);
  Send(1, id, 0, 0, {}, Finish::kRejected, "logprobs: at most 5");
  EXPECT_EQ(outcome.error.value().status, 400);
  EXPECT_EQ(outcome.error->message, "logprobs: at most 5");
}

TEST_F(DispatcherTest, ARequestIsRetriedOnceAfterAnError) {
  Up(1);
  Outcome outcome;
  const uint64_t id = Start(outcome);
  Send(1, id, 0, 0, {5}, Finish::kError, "step failed");
  EXPECT_EQ(outcome.tokens, Ids({5}));
  EXPECT_EQ(sent_.back().second.sequence.attempt, 1u);
  Send(1, id, 1, 1, {}, Finish::kError, "step failed");
  EXPECT_EQ(outcome.error.value().status, 500);
  EXPECT_THAT(outcome.error->message, HasSubstr("step failed"));
}

TEST_F(DispatcherTest, ARetryPrefersAnotherTarget) {
  Up(1);
  Up(2);
  Outcome outcome, other;
  const uint64_t id = Start(outcome);
  ASSERT_EQ(sent_[0].first, 1u);
  Start(other);  // so that 2 has as much to do
  Send(1, id, 0, 0, {5}, Finish::kError, "step failed");
  EXPECT_EQ(sent_.back().first, 2u);
  Send(2, id, 1, 1, {}, Finish::kError, "step failed");
  EXPECT_TRUE(outcome.error.has_value()) << "it is the request's";
}

TEST_F(DispatcherTest, ASilentTargetWithWorkIsDropped) {
  Make({.stall_timeout = 8 * kSecond});
  Up(1);
  Outcome outcome;
  const uint64_t id = Start(outcome);
  Send(1, id, 0, 0, {5}, Finish::kNone, "", 2 * kSecond);
  Up(2, 7, 2 * kSecond);
  for (base::Nanos now = 3 * kSecond; now <= 10 * kSecond; now += kSecond) dispatcher_->Tick(now);
  EXPECT_THAT(closed_, ElementsAre());
  dispatcher_->Tick(11 * kSecond);
  EXPECT_THAT(closed_, ElementsAre(1));
  EXPECT_EQ(sent_.back().first, 2u);
  EXPECT_EQ(sent_.back().second.sequence.generated, Ids({5}));
  EXPECT_EQ(metrics_.stalled_targets.Value(), 1);
  // Its late messages and the loss of its connection change nothing.
  Send(1, id, 0, 1, {6}, Finish::kNone, "", 11 * kSecond);
  dispatcher_->OnDown(1, 11 * kSecond);
  EXPECT_EQ(outcome.tokens, Ids({5}));
  EXPECT_EQ(sent_.size(), 2u);
  Send(2, id, 1, 1, {9}, Finish::kStop, "", 12 * kSecond);
  EXPECT_EQ(outcome.tokens, Ids({5, 9}));
  // Idle targets may be silent.
  for (base::Nanos now = 12 * kSecond; now <= 60 * kSecond; now += kSecond) dispatcher_->Tick(now);
  EXPECT_THAT(closed_, ElementsAre(1));
}

TEST_F(DispatcherTest, AStalledTargetGetsNoWorkBeforeItSendsAgain) {
  Make({.target_wait = 100 * kSecond, .stall_timeout = 8 * kSecond});
  Up(1);
  Outcome outcome;
  const uint64_t id = Start(outcome);
  for (base::Nanos now = 0; now <= 9 * kSecond; now += kSecond) dispatcher_->Tick(now);
  ASSERT_THAT(closed_, ElementsAre(1));
  dispatcher_->OnDown(1, 9 * kSecond);
  Up(2, 7, 10 * kSecond);  // the same incarnation reconnects: its link still works
  EXPECT_EQ(sent_.size(), 1u);
  EXPECT_EQ(dispatcher_->targets().Available(), 0);
  dispatcher_->OnBatch(2, {}, 11 * kSecond);
  dispatcher_->Tick(11 * kSecond);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_.back().first, 2u);
  Send(2, id, 1, 0, {5}, Finish::kStop, "", 12 * kSecond);
  EXPECT_EQ(outcome.tokens, Ids({5}));
}

TEST_F(DispatcherTest, HeartbeatsPreventAStallTimeout) {
  Make({.stall_timeout = 8 * kSecond});
  Up(1);
  Outcome outcome;
  Start(outcome);
  for (base::Nanos now = 0; now <= 100 * kSecond; now += kSecond) {
    dispatcher_->Tick(now);
    if (now % (5 * kSecond) == 0) dispatcher_->OnBatch(1, {}, now);
  }
  EXPECT_THAT(closed_, ElementsAre());
}

TEST_F(DispatcherTest, NoStallTimeoutAfterTheGatewayWasSuspended) {
  Make({.stall_timeout = 8 * kSecond});
  Up(1);
  Outcome outcome;
  Start(outcome);
  dispatcher_->Tick(kSecond);
  dispatcher_->Tick(50 * kSecond);
  dispatcher_->Tick(52 * kSecond);
  EXPECT_THAT(closed_, ElementsAre());
}

TEST_F(DispatcherTest, ARequestThatCrashesTargetsFails) {
  Make({.max_attempts = 3});
  Outcome outcome;
  Up(1);
  Start(outcome);
  for (PeerId peer = 1; peer <= 3; ++peer) {
    EXPECT_FALSE(outcome.error.has_value());
    dispatcher_->OnDown(peer, 0);
    Up(peer + 1);
  }
  EXPECT_EQ(outcome.error.value().status, 500);
}

TEST_F(DispatcherTest, CancelIsSentToTheTarget) {
  Up(1);
  Outcome outcome;
  const uint64_t id = Start(outcome);
  dispatcher_->Cancel(id);
  dispatcher_->Cancel(id);
  EXPECT_THAT(cancelled_, ElementsAre(std::tuple(PeerId{1}, id, 0u)));
  Send(1, id, 0, 0, {5});
  EXPECT_EQ(outcome.ends, 0);
  EXPECT_TRUE(outcome.tokens.empty());
}

TEST_F(DispatcherTest, TokensOfACancelledRequestCauseAnotherCancel) {
  Up(1);
  Up(2);
  Outcome outcome;
  const uint64_t id = Start(outcome);
  const PeerId first = sent_[0].first;
  dispatcher_->Cancel(id);
  cancelled_.clear();
  Send(first, id, 0, 0, {5});
  EXPECT_THAT(cancelled_, ElementsAre(std::tuple(first, id, 0u)));
  Send(first, id, 0, 1, {6}, Finish::kCancelled);  // has ended: nothing to cancel
  EXPECT_EQ(cancelled_.size(), 1u);
  // An attempt that was replaced by one on another target.
  Outcome moved;
  const uint64_t other = Start(moved);
  const PeerId left = sent_.back().first;
  Send(left, other, 0, 0, {}, Finish::kOverloaded, "queue full");
  cancelled_.clear();
  Send(left, other, 0, 0, {7});
  EXPECT_THAT(cancelled_, ElementsAre(std::tuple(left, other, 0u)));
  EXPECT_TRUE(moved.tokens.empty());
}

TEST_F(DispatcherTest, ARequestBeyondItsTimeLimitFails) {
  Up(1);
  Outcome slow, patient;
  const TimeLimit limit = {.received = kSecond, .timeout = 3 * kSecond};
  const uint64_t id = Start(slow, 2 * kSecond, 50, limit);
  Start(patient, 2 * kSecond);
  Send(1, id, 0, 0, {5});
  dispatcher_->Tick(4 * kSecond - 1);
  EXPECT_FALSE(slow.error.has_value());
  dispatcher_->Tick(4 * kSecond);
  ASSERT_TRUE(slow.error.has_value());
  EXPECT_EQ(slow.error->status, 504);
  EXPECT_EQ(slow.error->code, "timeout");
  EXPECT_THAT(slow.error->message, HasSubstr("within 3 s"));
  EXPECT_THAT(cancelled_, ElementsAre(std::tuple(PeerId{1}, id, 0u)));
  EXPECT_EQ(slow.ends, 1);
  dispatcher_->Tick(1000 * kSecond);
  EXPECT_EQ(patient.ends, 0);
  EXPECT_EQ(dispatcher_->choices(), 1u);
}

TEST_F(DispatcherTest, TheTimeLimitIncludesTheWaitForATarget) {
  Outcome outcome;
  Start(outcome, 0, 50, {.received = 0, .timeout = kSecond});
  dispatcher_->Tick(kSecond);
  EXPECT_EQ(outcome.error.value().status, 504);
  EXPECT_TRUE(cancelled_.empty());
}

TEST_F(DispatcherTest, RetryAfterFollowsTheRateOfFinishing) {
  Up(1);
  std::vector<Outcome> outcomes(101);
  base::Nanos now = 0;
  for (int i = 0; i < 100; ++i) {  // two finish each second, twenty run
    const uint64_t id = Start(outcomes[i], now);
    if (i >= 20) Send(1, id - 20, 0, 0, {}, Finish::kLength, "", now += kSecond / 2);
  }
  const int seconds = dispatcher_->RetryAfter(now);
  EXPECT_GE(seconds, 9);
  EXPECT_LE(seconds, 11);
  const uint64_t last = Start(outcomes[100], now);
  Send(1, last, 0, 0, {}, Finish::kOverloaded, "queue full", now);
  ASSERT_TRUE(outcomes[100].error.has_value());
  EXPECT_NEAR(outcomes[100].error->retry_after, seconds, 1);
}

TEST_F(DispatcherTest, ATargetThatRefusesASendIsSkipped) {
  Up(1);
  Up(2);
  broken_ = 1;
  send_status_ = absl::ResourceExhaustedError("too many sends");
  Outcome first, second;
  Start(first);
  Start(second);
  EXPECT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[0].first, 2u);
  EXPECT_EQ(sent_[1].first, 2u);
}

TEST_F(DispatcherTest, MessagesOfAnotherPeerAreDropped) {
  Up(1);
  Up(2);
  Outcome outcome;
  const uint64_t id = Start(outcome);
  Send(3 - sent_[0].first, id, 0, 0, {99});
  EXPECT_TRUE(outcome.tokens.empty());
  EXPECT_EQ(metrics_.stale_tokens.Value(), 1);
}

TEST_F(DispatcherTest, ASinkMayCancelOtherChoices) {
  Make({.max_attempts = 1});
  Up(1);
  Outcome other;
  uint64_t second = 0;
  Submit submit;
  submit.sequence.prompt = {1};
  submit.sequence.max_tokens = 5;
  ChoiceSink sink;
  sink.failed = [&](const ApiError&) { dispatcher_->Cancel(second); };
  dispatcher_->Start(submit, sink, 0);
  second = Start(other);
  dispatcher_->OnDown(1, 0);
  EXPECT_EQ(dispatcher_->choices(), 0u);
  EXPECT_EQ(other.ends, 0);
}

TEST_F(DispatcherTest, TheNumberOfChoicesIsLimited) {
  Make({.max_choices = 3});
  Up(1);
  Outcome outcome;
  Start(outcome);
  EXPECT_TRUE(dispatcher_->HasRoom(2));
  EXPECT_FALSE(dispatcher_->HasRoom(3));
}

// Choices of a lost target, and those that waited for one, are sent over several turns.
TEST_F(DispatcherTest, LongPromptsAreSentOverSeveralTurns) {
  prompt_ = Ids(30'000, 1);
  std::vector<Outcome> outcomes(10);
  for (Outcome& outcome : outcomes) Start(outcome);
  const auto place_all = [this] {
    int turns = 1;
    for (; dispatcher_->backlog(); ++turns) {
      const size_t before = sent_.size();
      dispatcher_->PlaceWaiting(0);
      EXPECT_LE(sent_.size() - before, 3u);
    }
    return turns;
  };
  EXPECT_FALSE(dispatcher_->backlog()) << "nobody is there to send them to";
  Up(1);
  EXPECT_GT(place_all(), 3);
  EXPECT_EQ(sent_.size(), 10u);
  Up(2);
  dispatcher_->OnDown(1, 0);
  EXPECT_GT(place_all(), 3);
  EXPECT_EQ(sent_.size(), 20u);
  for (size_t i = 10; i < 20; ++i) EXPECT_EQ(sent_[i].first, 2u);
  EXPECT_TRUE(discarded_.empty());
  dispatcher_->Cancel(sent_[19].second.request_id);
  ASSERT_EQ(discarded_.size(), 1u);
  EXPECT_EQ(discarded_[0], prompt_);
}

TEST_F(DispatcherTest, ManyShortChoicesAreSentOverSeveralTurns) {
  std::vector<Outcome> outcomes(1000);
  for (Outcome& outcome : outcomes) Start(outcome);
  Up(1);
  EXPECT_TRUE(dispatcher_->backlog());
  EXPECT_LT(sent_.size(), 200u);
  while (dispatcher_->backlog()) dispatcher_->PlaceWaiting(0);
  EXPECT_EQ(sent_.size(), 1000u);
}

}  // namespace
}  // namespace specfabric::gateway
