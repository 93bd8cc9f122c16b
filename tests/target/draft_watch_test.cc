#include "target/draft_watch.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/log_capture.h"

namespace specfabric::target {
namespace {

using base::kMillisecond;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr base::Nanos kWarn = 50 * kMillisecond;

class DraftWatchTest : public ::testing::Test {
 protected:
  DraftWatchTest() { watch_.Up(1, "a:1", "small"); }

  // For a second, in so many replies, the worker has this latency.
  void See(base::Nanos latency, uint64_t replies = DraftWatch::kSlowReplies) {
    scheduler::DraftState state;
    state.id = 1;
    state.latency = latency;
    state.replies = replies_;
    watch_.Update({state}, now_ += DraftWatch::kInterval);
    now_ += base::kSecond;
    state.replies = replies_ += replies;
    watch_.Update({state}, now_);
  }
  int Lines(const std::string& what) const { return log_.Count(what); }

  base::LogCapture log_;
  metrics::Registry registry_;
  metrics::DraftRouteMetrics metrics_{registry_};
  DraftWatch watch_{kWarn, &metrics_};
  base::Nanos now_ = 0;
  uint64_t replies_ = 0;
};

TEST_F(DraftWatchTest, WarnsOnceWhenItPassesAndTellsOnceWhenItIsBack) {
  for (base::Nanos ms : {10, 50, 51, 80, 49, 51, 38, 60}) See(ms * kMillisecond);
  EXPECT_EQ(Lines("draft worker a:1 (small) is slow: latency 51.000 ms, above "
                  "--draft_latency_warn (50.000 ms)"),
            1);
  EXPECT_EQ(Lines("is slow"), 1);
  EXPECT_EQ(Lines("is no longer slow"), 0);
  EXPECT_THAT(registry_.Render(), HasSubstr("worker_slow{model=\"small\",worker=\"a:1\"} 1\n"));
  See(37 * kMillisecond);
  EXPECT_EQ(Lines("draft worker a:1 (small) is no longer slow: latency 37.000 ms, below "
                  "three quarters of --draft_latency_warn (50.000 ms)"),
            1);
  EXPECT_THAT(registry_.Render(), HasSubstr("worker_slow{model=\"small\",worker=\"a:1\"} 0\n"));
  See(51 * kMillisecond);
  EXPECT_EQ(Lines("is slow"), 2);
}

TEST_F(DraftWatchTest, AFewSlowRepliesOrAShortWhileAreNoReason) {
  See(80 * kMillisecond, DraftWatch::kSlowReplies - 1);
  See(40 * kMillisecond);
  scheduler::DraftState state;
  state.id = 1;
  state.latency = 80 * kMillisecond;
  for (int i = 0; i < 9; ++i) {
    state.replies += 100;
    watch_.Update({state}, now_ += DraftWatch::kInterval);
  }
  EXPECT_EQ(Lines("is slow"), 0);
  EXPECT_THAT(registry_.Render(), HasSubstr("worker_slow{model=\"small\",worker=\"a:1\"} 0\n"));
  state.replies += 100;
  watch_.Update({state}, now_ += 2 * DraftWatch::kInterval);
  EXPECT_EQ(Lines("is slow"), 1);
}

// A router that reset a latency knows none until the next reply.
TEST_F(DraftWatchTest, AnUnknownLatencyIsNoReasonToSayThatItIsNoLongerSlow) {
  See(60 * kMillisecond);
  See(0);
  EXPECT_EQ(Lines("is no longer slow"), 0);
  EXPECT_THAT(registry_.Render(), HasSubstr("worker_slow{model=\"small\",worker=\"a:1\"} 1\n"));
  See(20 * kMillisecond);
  EXPECT_EQ(Lines("is no longer slow: latency 20.000 ms"), 1);
}

// The router's figures as they come: the first replies at a new home are mostly prefill, and what
// was learned about prefills may be far more than they took.
TEST_F(DraftWatchTest, WhatTheRouterLearnsIsNeverNearZero) {
  scheduler::DraftRouter router;
  router.OnUp(1, 100);
  const auto reply = [&](base::SequenceId sequence, int32_t length, base::Nanos latency) {
    router.Route(sequence, length, now_);
    router.OnReply(1, sequence, latency, 50, now_);
    now_ += base::kSecond;
    watch_.Update(router.States(), now_);
  };
  for (uint64_t i = 0; i <= DraftWatch::kSlowReplies; ++i) reply(1, 10, 80 * kMillisecond);
  reply(2, 1000, base::kSecond);  // about 0.9 ms a token
  EXPECT_EQ(Lines("is slow"), 1);
  now_ += 20 * base::kSecond;  // what it took is forgotten, but for the prefill
  reply(3, 1000, 60 * kMillisecond);
  EXPECT_EQ(Lines("is no longer slow"), 0);
  EXPECT_EQ(Lines("is slow"), 1) << "it is not known how much of that was prefill";
  EXPECT_THAT(registry_.Render(),
              HasSubstr("worker_latency_seconds{model=\"small\",worker=\"a:1\"} 0.06\n"));
  for (int i = 4; i < 20; ++i) reply(i, 1000, 20 * kMillisecond);
  EXPECT_EQ(Lines("is no longer slow: latency 20.000 ms"), 1);
  reply(4, 1004, 20 * kMillisecond);
  for (int i = 20; i < 40; ++i) {
    reply(i, 1000, 20 * kMillisecond);
    EXPECT_GE(router.States()[0].latency, 10 * kMillisecond);
  }
}

TEST_F(DraftWatchTest, ZeroNeverWarns) {
  DraftWatch watch(0, &metrics_);
  watch.Up(1, "a:1", "small");
  scheduler::DraftState state;
  state.id = 1;
  state.latency = base::kSecond;
  watch.Update({state}, 1);
  EXPECT_EQ(log_.text(), "");
}

TEST_F(DraftWatchTest, ShowsWhatItWasToldLastOnceItIsDue) {
  EXPECT_EQ(watch_.due(), base::kForever);
  scheduler::DraftState state;
  state.id = 1;
  watch_.Update({state}, base::kSecond);
  EXPECT_EQ(watch_.due(), base::kForever);
  state.homes = 3;
  watch_.Update({state}, base::kSecond + 1);
  EXPECT_EQ(watch_.due(), base::kSecond + DraftWatch::kInterval);
  EXPECT_THAT(registry_.Render(), HasSubstr("worker_sequences{model=\"small\",worker=\"a:1\"} 0"));
  watch_.Update({state}, watch_.due());
  EXPECT_EQ(watch_.due(), base::kForever);
  EXPECT_THAT(registry_.Render(), HasSubstr("worker_sequences{model=\"small\",worker=\"a:1\"} 3"));
}

TEST_F(DraftWatchTest, AWorkerThatIsGoneHasNoSeries) {
  See(kMillisecond);
  EXPECT_THAT(registry_.Render(), HasSubstr("a:1"));
  watch_.Down(1);
  watch_.Update({}, now_ + 1);
  EXPECT_THAT(registry_.Render(), Not(HasSubstr("a:1")));
}

}  // namespace
}  // namespace specfabric::target
