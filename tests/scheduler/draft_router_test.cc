#include "scheduler/routing/draft_router.h"

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
    ASSERT_EQ(router->Route(sequence, 10, now), draft);
    router->OnMiss(draft, now);
  }
}

TEST(DraftRouterTest, WithoutWorkersThereIsNoRoute) {
  DraftRouter router;
  EXPECT_FALSE(router.Route(1, 10, 0));
  router.OnUp(7, 4);
  EXPECT_EQ(router.Route(1, 10, 0), 7u);
  router.OnDown(7);
  EXPECT_FALSE(router.Route(1, 10, 0));
}

TEST(DraftRouterTest, SequenceStaysAtHome) {
  DraftRouter router;
  router.OnUp(1, 4);
  router.OnUp(2, 4);
  const DraftId home = *router.Route(9, 10, 0);
  for (int i = 0; i < 20; ++i) {
    router.OnReply(home, 9, kMillisecond, 0, 0);
    router.Route(100 + i, 10, 0);
    EXPECT_EQ(router.Route(9, 10, 0), home);
  }
  EXPECT_EQ(router.Home(9), home);
  router.OnEnd(9);
  EXPECT_FALSE(router.Home(9));
}

// So that the probe finds there what it needs.
TEST(DraftRouterTest, SettlesWithAWorkerThatMayBeProbed) {
  DraftRouter router;
  router.OnUp(1, 8);
  base::Nanos now = 0;
  for (int i = 0; i < DraftRouterOptions().max_misses; ++i) {
    ASSERT_TRUE(router.Route(i, 10, now));
    router.OnMiss(1, now);
  }
  EXPECT_FALSE(router.Settle(20, 10, now));
  now += DraftRouterOptions().min_backoff;
  EXPECT_EQ(router.Settle(20, 10, now), 1u);
  EXPECT_EQ(router.Route(20, 10, now), 1u);
  EXPECT_FALSE(router.Settle(21, 10, now)) << "one probe at a time";
  router.OnReply(1, 20, base::kMillisecond, 7, now);
  EXPECT_EQ(router.Settle(21, 10, now), 1u);
}

TEST(DraftRouterTest, SettlesWithoutARequest) {
  DraftRouter router;
  EXPECT_FALSE(router.Settle(9, 10, 0));
  router.OnUp(1, 4);
  router.OnUp(2, 4);
  const DraftId home = *router.Settle(9, 10, 0);
  EXPECT_EQ(router.Settle(9, 10, 0), home);
  EXPECT_EQ(StateOf(router, home).outstanding, 0);
  EXPECT_EQ(StateOf(router, home).homes, 1);
  EXPECT_NE(router.Settle(10, 10, 0), home);
  EXPECT_EQ(router.Route(9, 10, 0), home);
  router.OnDrain(home);
  EXPECT_NE(router.Settle(9, 10, 0), home);
}

TEST(DraftRouterTest, NewSequencesSpreadByCapacity) {
  DraftRouter router;
  router.OnUp(1, 30);
  router.OnUp(2, 10);
  for (base::SequenceId sequence = 0; sequence < 20; ++sequence) router.Route(sequence, 10, 0);
  EXPECT_EQ(StateOf(router, 1).homes, 15);
  EXPECT_EQ(StateOf(router, 2).homes, 5);
}

TEST(DraftRouterTest, WorkerWithMissesIsTakenOutAndItsSequencesMove) {
  DraftRouter router;
  router.OnUp(1, 4);
  MissFive(&router, 1, 9, 0);
  EXPECT_TRUE(StateOf(router, 1).out);
  EXPECT_FALSE(router.Route(9, 10, 1));
  router.OnUp(2, 4);
  EXPECT_EQ(router.Route(9, 10, 1), 2u);
  EXPECT_EQ(router.Home(9), 2u);
  EXPECT_EQ(StateOf(router, 1).homes, 0);
}

TEST(DraftRouterTest, ReplyBetweenMissesKeepsAWorkerInService) {
  DraftRouter router;
  router.OnUp(1, 4);
  for (int i = 0; i < 40; ++i) {
    router.Route(9, 10, 0);
    if (i % 5 == 4) {
      router.OnReply(1, 9, kMillisecond, 3, 0);
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
    EXPECT_FALSE(router.Route(9, 10, now + backoff - 1));
    now += backoff;
    EXPECT_EQ(router.Route(9, 10, now), 1u);
    EXPECT_FALSE(router.Route(8, 10, now)) << "one probe at a time";
    router.OnMiss(1, now);
    backoff = std::min(2 * backoff, 10 * kSecond);
  }
  EXPECT_EQ(backoff, 10 * kSecond);
  now += backoff;
  EXPECT_EQ(router.Route(9, 10, now), 1u);
  router.OnReply(1, 9, kMillisecond, 3, 0);
  EXPECT_FALSE(StateOf(router, 1).out);
  EXPECT_EQ(router.Route(8, 10, now), 1u);
}

TEST(DraftRouterTest, ProbeWithoutAnOutcomeIsRepeated) {
  DraftRouter router;
  router.OnUp(1, 4);
  MissFive(&router, 1, 9, 0);
  EXPECT_EQ(router.Route(9, 10, 100 * kMillisecond), 1u);
  EXPECT_FALSE(router.Route(9, 10, 199 * kMillisecond));
  EXPECT_EQ(router.Route(9, 10, 200 * kMillisecond), 1u);
}

TEST(DraftRouterTest, StaleMissesDoNotLengthenTheBackOff) {
  DraftRouter router;
  router.OnUp(1, 16);
  for (base::SequenceId sequence = 0; sequence < 12; ++sequence) router.Route(sequence, 10, 0);
  for (int i = 0; i < 12; ++i) router.OnMiss(1, 0);
  EXPECT_EQ(StateOf(router, 1).backoff, 100 * kMillisecond);
  EXPECT_EQ(StateOf(router, 1).outstanding, 0);
}

TEST(DraftRouterTest, SequenceWithAHomeIsNotUsedAsAProbe) {
  DraftRouter router;
  router.OnUp(1, 4);
  MissFive(&router, 1, 9, 0);
  router.OnUp(2, 4);
  EXPECT_EQ(router.Route(5, 10, 1), 2u);
  router.OnReply(2, 9, kMillisecond, 3, 0);
  EXPECT_EQ(router.Route(5, 10, kSecond), 2u);
  EXPECT_EQ(router.Route(6, 10, kSecond), 1u);  // new: tries the other
}

TEST(DraftRouterTest, BusyWorkerIsNotAskedForAWhile) {
  DraftRouter router;
  router.OnUp(1, 1);
  EXPECT_EQ(router.Route(1, 10, 0), 1u);
  router.OnBusy(1, 1, 0);
  EXPECT_FALSE(router.Home(1));
  router.OnUp(2, 1);
  EXPECT_EQ(router.Route(1, 10, 1), 2u);
  EXPECT_FALSE(StateOf(router, 1).out);
  router.OnEnd(1);
}

TEST(DraftRouterTest, FullWorkersAreTriedUntilTheyRefuse) {
  DraftRouter router;
  router.OnUp(1, 1);
  router.OnUp(2, 1);
  EXPECT_EQ(router.Route(1, 10, 0), 1u);
  EXPECT_EQ(router.Route(2, 10, 0), 2u);
  const DraftId tried = *router.Route(3, 10, 0);
  router.OnBusy(tried, 3, 0);
  const DraftId other = *router.Route(3, 10, 0);
  EXPECT_NE(other, tried);
  router.OnBusy(other, 3, 0);
  EXPECT_FALSE(router.Route(3, 10, 0));
  EXPECT_TRUE(router.Route(3, 10, 100 * kMillisecond));
}

TEST(DraftRouterTest, DrainingWorkerKeepsNoSequence) {
  DraftRouter router;
  router.OnUp(1, 4);
  EXPECT_EQ(router.Route(9, 10, 0), 1u);
  router.OnDrain(1);
  EXPECT_FALSE(router.Route(9, 10, 0));
  router.OnUp(2, 4);
  EXPECT_EQ(router.Route(9, 10, 0), 2u);
}

TEST(DraftRouterTest, RestartForgetsTheEarlierState) {
  DraftRouter router;
  router.OnUp(1, 4);
  MissFive(&router, 1, 9, 0);
  router.OnUp(1, 8);
  const DraftState state = StateOf(router, 1);
  EXPECT_FALSE(state.out);
  EXPECT_EQ(state.capacity, 8);
  EXPECT_EQ(state.outstanding, 0);
  router.OnMiss(1, 0);  // of a request before the restart
  EXPECT_EQ(StateOf(router, 1).outstanding, 0);
}

// Otherwise a worker would stay out of service where a step never waits for a single probe.
TEST(DraftRouterTest, UnusedReplyEndsTheOutage) {
  DraftRouter router;
  router.OnUp(1, 4);
  MissFive(&router, 1, 9, 0);
  const base::Nanos due = StateOf(router, 1).probe_at;
  EXPECT_EQ(router.Route(9, 10, due), 1u);
  EXPECT_FALSE(router.Route(8, 10, due));
  router.OnAbandoned(1);
  router.OnLateReply(1, 9, kMillisecond, due);
  EXPECT_TRUE(StateOf(router, 1).out);
  router.OnUnusedReply(1, 9, kMillisecond, due);
  EXPECT_FALSE(StateOf(router, 1).out);
  EXPECT_EQ(router.Route(8, 10, due), 1u);
}

TEST(DraftRouterTest, OutcomesOfUnknownWorkersAreIgnored) {
  DraftRouter router;
  router.OnReply(1, 9, 1, 1, 0);
  router.OnMiss(1, 0);
  router.OnBusy(1, 2, 0);
  router.OnLateReply(1, 2, 1, 0);
  router.OnUnusedReply(1, 2, 1, 0);
  router.OnDrain(1);
  router.OnDown(1);
  EXPECT_TRUE(router.States().empty());
}

DraftRouterOptions With(RoutePolicy policy) {
  DraftRouterOptions options;
  options.policy = policy;
  return options;
}

// One request and its reply.
DraftId Round(DraftRouter* router, base::SequenceId sequence, int32_t length, base::Nanos latency,
              base::Nanos now) {
  const DraftId draft = router->Route(sequence, length, now).value();
  router->OnReply(draft, sequence, latency, 100, now);
  return draft;
}

TEST(RoutePolicyTest, NamesRoundTrip) {
  for (RoutePolicy policy : {RoutePolicy::kAffinity, RoutePolicy::kRoundRobin,
                             RoutePolicy::kLeastLoaded, RoutePolicy::kLatency}) {
    EXPECT_EQ(ParseRoutePolicy(Name(policy)).value(), policy);
  }
  EXPECT_FALSE(ParseRoutePolicy("").ok());
  EXPECT_FALSE(ParseRoutePolicy("random").ok());
}

TEST(RoutePolicyTest, TargetsThatShareAPoolBeginWithDifferentWorkers) {
  std::map<DraftId, int> first;
  for (uint64_t salt = 1; salt <= 400; ++salt) {
    DraftRouterOptions options;
    options.salt = salt;
    DraftRouter router(options);
    for (DraftId draft = 1; draft <= 4; ++draft) router.OnUp(draft, 8);
    ++first[*router.Route(1, 10, 0)];
  }
  for (DraftId draft = 1; draft <= 4; ++draft) EXPECT_NEAR(first[draft], 100, 35);
}

TEST(RoutePolicyTest, RoundRobinTakesWorkersInTurnAndSequencesStay) {
  DraftRouter router(With(RoutePolicy::kRoundRobin));
  for (DraftId draft : {3, 5, 8}) router.OnUp(draft, draft == 5 ? 100 : 4);
  std::vector<DraftId> order;
  for (base::SequenceId sequence = 0; sequence < 6; ++sequence) {
    order.push_back(Round(&router, sequence, 10, kMillisecond, 0));
  }
  EXPECT_THAT(order, testing::ElementsAre(3, 5, 8, 3, 5, 8));
  for (base::SequenceId sequence = 0; sequence < 6; ++sequence) {
    EXPECT_EQ(Round(&router, sequence, 10, kMillisecond, 20 * kSecond), order[sequence]);
  }
}

TEST(RoutePolicyTest, RoundRobinSkipsFullAndMissingWorkers) {
  DraftRouter router(With(RoutePolicy::kRoundRobin));
  for (DraftId draft : {1, 2, 3}) router.OnUp(draft, 1);
  EXPECT_EQ(router.Route(1, 10, 0), 1u);
  router.OnDown(2);
  EXPECT_EQ(router.Route(2, 10, 0), 3u);
  // Both are full, and tried in turn until they refuse.
  EXPECT_EQ(router.Route(3, 10, 0), 1u);
  router.OnBusy(1, 3, 0);
  EXPECT_EQ(router.Route(3, 10, 0), 3u);
  router.OnBusy(3, 3, 0);
  EXPECT_FALSE(router.Route(3, 10, 0));
}

TEST(RoutePolicyTest, OnlyTheMovingPoliciesMove) {
  for (RoutePolicy policy : {RoutePolicy::kAffinity, RoutePolicy::kRoundRobin}) {
    DraftRouter router(With(policy));
    router.OnUp(1, 100);
    for (base::SequenceId s = 0; s < 8; ++s) Round(&router, s, 10, 80 * kMillisecond, 0);
    router.OnUp(2, 100);
    for (int i = 1; i < 50; ++i) {
      for (base::SequenceId s = 0; s < 8; ++s) {
        ASSERT_EQ(Round(&router, s, 10, 80 * kMillisecond, i * kSecond), 1u);
      }
    }
  }
}

TEST(RoutePolicyTest, LeastLoadedFillsANewWorkerAndThenStops) {
  DraftRouter router(With(RoutePolicy::kLeastLoaded));
  router.OnUp(1, 100);
  base::Nanos now = 0;
  for (base::SequenceId s = 0; s < 8; ++s) Round(&router, s, 10, 10 * kMillisecond, now);
  router.OnUp(2, 100);
  for (int i = 0; i < 400; ++i) {
    now += 20 * kMillisecond;
    for (base::SequenceId s = 0; s < 8; ++s) Round(&router, s, 10, 10 * kMillisecond, now);
  }
  // At five and three no further move is clearly better.
  EXPECT_NEAR(StateOf(router, 1).homes, 4, 1);
  EXPECT_EQ(StateOf(router, 1).homes + StateOf(router, 2).homes, 8);
  const uint64_t moves = StateOf(router, 1).moves + StateOf(router, 2).moves;
  EXPECT_LE(moves, 4u) << "nobody moves to and fro";
}

TEST(RoutePolicyTest, MoveMustPayForItsPrefill) {
  const auto moves = [](base::Nanos prefill_a_token, int32_t length) {
    DraftRouter router(With(RoutePolicy::kLeastLoaded));
    router.OnUp(1, 100);
    const base::Nanos usual = 10 * kMillisecond;
    Round(&router, 0, 10, usual, 0);
    for (base::SequenceId s = 1; s < 8; ++s) {
      const DraftId home = router.Route(s, 1000, 0).value();
      router.OnReply(home, s, usual + 1000 * prefill_a_token, 90, 0);
    }
    EXPECT_NEAR(router.prefill_ns(), static_cast<double>(prefill_a_token), 1);
    EXPECT_NEAR(StateOf(router, 1).latency, usual, 10) << "the prefill is not its latency";
    router.OnUp(2, 100);
    return Round(&router, 3, length, usual, 2 * kSecond) == 2;
  };
  // It saves up to 7/8 of 10 ms a round, 280 ms in 32 rounds.
  EXPECT_TRUE(moves(100 * base::kMicrosecond, 2000));
  EXPECT_FALSE(moves(100 * base::kMicrosecond, 3500));
  EXPECT_TRUE(moves(base::kMicrosecond, 3500));
}

TEST(RoutePolicyTest, MostlyPrefillRepliesSayNothingAboutTheRound) {
  DraftRouter router;
  router.OnUp(1, 100);
  const base::Nanos usual = 10 * kMillisecond;
  Round(&router, 0, 10, usual, 0);
  Round(&router, 1, 1000, usual + 1000 * kMillisecond, 0);
  ASSERT_NEAR(router.prefill_ns(), kMillisecond, 1);
  // The smoothed latency is out of date, and this reply took less time than its prefill was
  // expected to take: the time of a round is unknown, and a prefill is faster than estimated.
  base::Nanos now = 10 * kSecond;
  Round(&router, 2, 1000, 40 * kMillisecond, now);
  EXPECT_EQ(StateOf(router, 1).latency, 0);
  EXPECT_EQ(StateOf(router, 1).last_latency, 40 * kMillisecond);
  EXPECT_LT(router.prefill_ns(), 0.9 * kMillisecond);
  Round(&router, 2, 1000, usual, now);
  EXPECT_EQ(StateOf(router, 1).latency, usual);
  // Faster than usual in spite of the prefill: an upper bound of the time of a round.
  Round(&router, 3, 1000, usual / 5, now);
  EXPECT_EQ(StateOf(router, 1).latency, usual - usual / 10);
}

TEST(RoutePolicyTest, LatencyPolicyLeavesAWorkerThatBecameSlow) {
  DraftRouter router(With(RoutePolicy::kLatency));
  router.OnUp(1, 100);
  router.OnUp(2, 100);
  base::Nanos now = 0;
  const auto all = [&](base::Nanos of_one) {
    for (base::SequenceId s = 0; s < 6; ++s) {
      const DraftId draft = router.Route(s, 10, now).value();
      router.OnReply(draft, s, draft == 1 ? of_one : 10 * kMillisecond, 90, now);
    }
    now += 50 * kMillisecond;
  };
  for (int i = 0; i < 100; ++i) all(10 * kMillisecond);
  const int before = StateOf(router, 1).homes;
  EXPECT_GT(before, 0);
  for (int i = 0; i < 100; ++i) all(11 * kMillisecond);
  EXPECT_EQ(StateOf(router, 1).homes, before) << "a tenth is not clearly slower";
  for (int i = 0; i < 100; ++i) all(60 * kMillisecond);
  EXPECT_EQ(StateOf(router, 1).homes, 0);
  EXPECT_EQ(StateOf(router, 2).homes, 6);
  // Without requests its latency is unknown: a new sequence tries it again in time.
  EXPECT_EQ(Round(&router, 10, 10, 10 * kMillisecond, now), 2u);
  now += 10 * kSecond;
  all(10 * kMillisecond);
  EXPECT_EQ(Round(&router, 11, 10, 10 * kMillisecond, now), 1u);
  EXPECT_LT(StateOf(router, 1).latency, 11 * kMillisecond) << "what it was is forgotten";
}

TEST(RoutePolicyTest, LatencyPolicyDoesNotMoveAllAtOnce) {
  DraftRouterOptions options = With(RoutePolicy::kLatency);
  DraftRouter router(options);
  router.OnUp(1, 100);
  for (base::SequenceId s = 0; s < 10; ++s) Round(&router, s, 10, 60 * kMillisecond, 0);
  router.OnUp(2, 100);
  Round(&router, 10, 10, 10 * kMillisecond, 0);
  ASSERT_EQ(router.Home(10), 2u);
  base::Nanos now = 2 * kSecond;
  for (base::SequenceId s = 0; s < 10; ++s) router.Route(s, 10, now);
  EXPECT_EQ(StateOf(router, 2).homes, 2);
  for (base::SequenceId s = 0; s < 10; ++s) router.Route(s, 10, now + options.settle - 1);
  EXPECT_EQ(StateOf(router, 2).homes, 2);
  for (base::SequenceId s = 0; s < 10; ++s) router.Route(s, 10, now + options.settle);
  EXPECT_EQ(StateOf(router, 2).homes, 3);
}

class EveryPolicy : public testing::TestWithParam<RoutePolicy> {};

// Random events in random order: sequences and requests are counted exactly, no request goes to a
// worker that is gone, draining or out of service (except a probe that is due), and there is a
// route while a worker is in service, has a free session and has not refused.
TEST_P(EveryPolicy, CountsExactlyAndAvoidsWorkersOutOfService) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    DraftRouterOptions options = With(GetParam());
    options.salt = random() % 3;
    options.min_stay = kSecond / 4;
    DraftRouter router(options);
    base::Nanos now = 0;
    struct Request {
      base::SequenceId sequence;
      DraftId draft;
    };
    std::vector<Request> requests;
    for (int step = 0; step < 500; ++step) {
      now += random() % (50 * kMillisecond);
      const base::SequenceId sequence = random() % 20;
      const DraftId draft = 1 + random() % 5;
      const auto forget = [&] {
        std::erase_if(requests, [&](const Request& r) { return r.draft == draft; });
      };
      switch (random() % 16) {
        case 0:
          router.OnUp(draft, 1 + random() % 8);
          forget();
          break;
        case 1:
          if (random() % 4 == 0) {
            router.OnDown(draft);
            forget();
          }
          break;
        case 2:
          router.OnEnd(sequence);
          break;
        case 3:
          if (random() % 4 == 0) router.OnDrain(draft);
          break;
        default: {
          const std::vector<DraftState> before = router.States();
          const auto route = router.Route(sequence, 1 + random() % 2000, now);
          bool room = false;
          for (const DraftState& state : before) {
            room = room || (!state.out && !state.draining && state.free_sessions > 0);
            if (route != state.id) continue;
            ASSERT_FALSE(state.draining);
            ASSERT_TRUE(!state.out || now >= state.probe_at);
          }
          if (!route) {
            ASSERT_FALSE(room);
            break;
          }
          EXPECT_EQ(router.Home(sequence), route);
          requests.push_back({sequence, *route});
        }
      }
      if (!requests.empty() && random() % 2 == 0) {
        std::swap(requests[random() % requests.size()], requests.back());
        const auto [of, at] = requests.back();
        requests.pop_back();
        const base::Nanos latency = 1 + random() % (100 * kMillisecond);
        switch (random() % 6) {
          case 0:
          case 1:
            router.OnReply(at, of, latency, random() % 4, now);
            break;
          case 2:
            router.OnMiss(at, now);
            if (random() % 2 == 0) router.OnLateReply(at, of, latency, now);
            break;
          case 3:
            router.OnBusy(at, of, now);
            break;
          case 4:
            router.OnRefused(at);
            break;
          case 5:
            router.OnAbandoned(at);
            if (random() % 2 == 0) router.OnUnusedReply(at, of, latency, now);
        }
      }
      std::map<DraftId, int> homes, outstanding;
      for (base::SequenceId s = 0; s < 20; ++s) {
        if (const auto home = router.Home(s)) ++homes[*home];
      }
      for (const Request& request : requests) ++outstanding[request.draft];
      for (const DraftState& state : router.States()) {
        ASSERT_EQ(state.homes, homes[state.id]);
        ASSERT_EQ(state.outstanding, outstanding[state.id]);
        ASSERT_GE(state.free_sessions, 0);
        ASSERT_LE(state.free_sessions, std::max(3, state.capacity));
        ASSERT_GE(state.latency, 0);
      }
      ASSERT_GE(router.prefill_ns(), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(RoutePolicyTest, EveryPolicy,
                         testing::Values(RoutePolicy::kAffinity, RoutePolicy::kRoundRobin,
                                         RoutePolicy::kLeastLoaded, RoutePolicy::kLatency),
                         [](const auto& policy) { return std::string(Name(policy.param)); });

}  // namespace
}  // namespace specfabric::scheduler
