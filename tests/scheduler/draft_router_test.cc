#include "scheduler/draft_router.h"

#include <map>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::scheduler {
namespace {

using base::kMillisecond;
using base::kSecond;

DraftState StateOf(const DraftRouter& router, DraftId draft) {
  for (const DraftState& state : router.States()) {
    if (state.id == draft) return state;
  }
  ADD_FAILURE() << "no draft " << draft;
  return {};
}

void MissFive(DraftRouter* router, DraftId draft, base::SequenceId sequence, base::Nanos now) {
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(router->Route(sequence, now), draft);
    router->OnMiss(draft, now);
  }
}

TEST(DraftRouterTest, WithoutWorkersThereIsNoRoute) {
  DraftRouter router;
  EXPECT_FALSE(router.Route(1, 0));
  router.OnUp(7, 4);
  EXPECT_EQ(router.Route(1, 0), 7u);
  router.OnDown(7);
  EXPECT_FALSE(router.Route(1, 0));
}

TEST(DraftRouterTest, ASequenceStaysAtHome) {
  DraftRouter router;
  router.OnUp(1, 4);
  router.OnUp(2, 4);
  const DraftId home = *router.Route(9, 0);
  for (int i = 0; i < 20; ++i) {
    router.OnReply(home, kMillisecond, 0);
    router.Route(100 + i, 0);
    EXPECT_EQ(router.Route(9, 0), home);
  }
  EXPECT_EQ(router.Home(9), home);
  router.OnEnd(9);
  EXPECT_FALSE(router.Home(9));
}

TEST(DraftRouterTest, NewSequencesSpreadByCapacity) {
  DraftRouter router;
  router.OnUp(1, 30);
  router.OnUp(2, 10);
  for (base::SequenceId sequence = 0; sequence < 20; ++sequence) router.Route(sequence, 0);
  EXPECT_EQ(StateOf(router, 1).homes, 15);
  EXPECT_EQ(StateOf(router, 2).homes, 5);
}

TEST(DraftRouterTest, AMissingWorkerIsTakenOutAndItsSequencesMove) {
  DraftRouter router;
  router.OnUp(1, 4);
  MissFive(&router, 1, 9, 0);
  EXPECT_TRUE(StateOf(router, 1).out);
  EXPECT_FALSE(router.Route(9, 1));
  router.OnUp(2, 4);
  EXPECT_EQ(router.Route(9, 1), 2u);
  EXPECT_EQ(router.Home(9), 2u);
  EXPECT_EQ(StateOf(router, 1).homes, 0);
}

TEST(DraftRouterTest, AReplyBetweenMissesKeepsAWorkerIn) {
  DraftRouter router;
  router.OnUp(1, 4);
  for (int i = 0; i < 40; ++i) {
    router.Route(9, 0);
    if (i % 5 == 4) {
      router.OnReply(1, kMillisecond, 3);
    } else {
      router.OnMiss(1, 0);
    }
  }
  EXPECT_FALSE(StateOf(router, 1).out);
}

TEST(DraftRouterTest, ProbesBackOffExponentiallyUpToTheBound) {
  DraftRouter router;
  router.OnUp(1, 4);
  MissFive(&router, 1, 9, 0);
  base::Nanos now = 0, backoff = 100 * kMillisecond;
  for (int probe = 0; probe < 12; ++probe) {
    EXPECT_FALSE(router.Route(9, now + backoff - 1));
    now += backoff;
    EXPECT_EQ(router.Route(9, now), 1u);
    EXPECT_FALSE(router.Route(8, now)) << "one probe at a time";
    router.OnMiss(1, now);
    backoff = std::min(2 * backoff, 10 * kSecond);
  }
  EXPECT_EQ(backoff, 10 * kSecond);
  now += backoff;
  EXPECT_EQ(router.Route(9, now), 1u);
  router.OnReply(1, kMillisecond, 3);
  EXPECT_FALSE(StateOf(router, 1).out);
  EXPECT_EQ(router.Route(8, now), 1u);
}

TEST(DraftRouterTest, AProbeWhoseOutcomeNeverComesIsRepeated) {
  DraftRouter router;
  router.OnUp(1, 4);
  MissFive(&router, 1, 9, 0);
  EXPECT_EQ(router.Route(9, 100 * kMillisecond), 1u);
  EXPECT_FALSE(router.Route(9, 199 * kMillisecond));
  EXPECT_EQ(router.Route(9, 200 * kMillisecond), 1u);
}

TEST(DraftRouterTest, StrayMissesDoNotLengthenTheBackOff) {
  DraftRouter router;
  router.OnUp(1, 16);
  for (base::SequenceId sequence = 0; sequence < 12; ++sequence) router.Route(sequence, 0);
  for (int i = 0; i < 12; ++i) router.OnMiss(1, 0);
  EXPECT_EQ(StateOf(router, 1).backoff, 100 * kMillisecond);
  EXPECT_EQ(StateOf(router, 1).outstanding, 0);
}

TEST(DraftRouterTest, ASequenceThatIsServedWellIsNotUsedAsAProbe) {
  DraftRouter router;
  router.OnUp(1, 4);
  MissFive(&router, 1, 9, 0);
  router.OnUp(2, 4);
  EXPECT_EQ(router.Route(5, 1), 2u);
  router.OnReply(2, kMillisecond, 3);
  EXPECT_EQ(router.Route(5, kSecond), 2u);
  EXPECT_EQ(router.Route(6, kSecond), 1u);  // new: tries the other
}

TEST(DraftRouterTest, ABusyWorkerIsLeftAloneForAWhile) {
  DraftRouter router;
  router.OnUp(1, 1);
  EXPECT_EQ(router.Route(1, 0), 1u);
  router.OnBusy(1, 1, 0);
  EXPECT_FALSE(router.Home(1));
  router.OnUp(2, 1);
  EXPECT_EQ(router.Route(1, 1), 2u);
  EXPECT_FALSE(StateOf(router, 1).out);
  router.OnEnd(1);
}

TEST(DraftRouterTest, WhereAllAreFullOneIsTriedUntilItRefuses) {
  DraftRouter router;
  router.OnUp(1, 1);
  router.OnUp(2, 1);
  EXPECT_EQ(router.Route(1, 0), 1u);
  EXPECT_EQ(router.Route(2, 0), 2u);
  const DraftId tried = *router.Route(3, 0);
  router.OnBusy(tried, 3, 0);
  const DraftId other = *router.Route(3, 0);
  EXPECT_NE(other, tried);
  router.OnBusy(other, 3, 0);
  EXPECT_FALSE(router.Route(3, 0));
  EXPECT_TRUE(router.Route(3, 100 * kMillisecond));
}

TEST(DraftRouterTest, ADrainingWorkerKeepsNobody) {
  DraftRouter router;
  router.OnUp(1, 4);
  EXPECT_EQ(router.Route(9, 0), 1u);
  router.OnDrain(1);
  EXPECT_FALSE(router.Route(9, 0));
  router.OnUp(2, 4);
  EXPECT_EQ(router.Route(9, 0), 2u);
}

TEST(DraftRouterTest, ARestartStartsAfresh) {
  DraftRouter router;
  router.OnUp(1, 4);
  MissFive(&router, 1, 9, 0);
  router.OnUp(1, 8);
  const DraftState state = StateOf(router, 1);
  EXPECT_FALSE(state.out);
  EXPECT_EQ(state.capacity, 8);
  EXPECT_EQ(state.outstanding, 0);
  router.OnMiss(1, 0);  // of a request to its earlier life
  EXPECT_EQ(StateOf(router, 1).outstanding, 0);
}

TEST(DraftRouterTest, OutcomesOfUnknownWorkersAreIgnored) {
  DraftRouter router;
  router.OnReply(1, 1, 1);
  router.OnMiss(1, 0);
  router.OnBusy(1, 2, 0);
  router.OnLateReply(1, 1);
  router.OnDrain(1);
  router.OnDown(1);
  EXPECT_TRUE(router.States().empty());
}

TEST(DraftRouterTest, RandomCallsKeepTheCountsConsistent) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 100; ++trial) {
    DraftRouter router;
    base::Nanos now = 0;
    std::vector<std::pair<base::SequenceId, DraftId>> outstanding;
    for (int step = 0; step < 500; ++step) {
      now += random() % (50 * kMillisecond);
      const base::SequenceId sequence = random() % 20;
      const DraftId draft = random() % 4;
      switch (random() % 12) {
        case 0:
          router.OnUp(draft, 1 + random() % 8);
          std::erase_if(outstanding, [&](const auto& o) { return o.second == draft; });
          break;
        case 1:
          if (random() % 4 == 0) router.OnDown(draft);
          break;
        case 2:
          router.OnEnd(sequence);
          break;
        default:
          if (const auto route = router.Route(sequence, now)) {
            EXPECT_EQ(router.Home(sequence), route);
            outstanding.emplace_back(sequence, *route);
          }
      }
      if (!outstanding.empty() && random() % 2 == 0) {
        std::swap(outstanding[random() % outstanding.size()], outstanding.back());
        const auto [of, at] = outstanding.back();
        outstanding.pop_back();
        switch (random() % 3) {
          case 0:
            router.OnReply(at, kMillisecond, random() % 4);
            break;
          case 1:
            router.OnMiss(at, now);
            break;
          case 2:
            router.OnBusy(at, of, now);
        }
      }
      std::map<DraftId, int> homes;
      for (base::SequenceId s = 0; s < 20; ++s) {
        if (const auto home = router.Home(s)) ++homes[*home];
      }
      for (const DraftState& state : router.States()) {
        ASSERT_EQ(state.homes, homes[state.id]);
        ASSERT_GE(state.outstanding, 0);
        ASSERT_GE(state.free_sessions, 0);
      }
    }
  }
}

}  // namespace
}  // namespace specfabric::scheduler
