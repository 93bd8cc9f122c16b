// Equal shares between tenants, on a simulated clock.

#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/policy/tenant_shares.h"
#include "tests/scheduler/rig.h"

namespace specfabric::scheduler {
namespace {

using base::kMillisecond;
using base::kSecond;
using base::Nanos;
using testing::ElementsAre;

SchedulerOptions FewPlaces() {
  SchedulerOptions options = Options();
  options.max_sequences = 4;
  options.max_waiting = 100'000;
  return options;
}

// A group with more demand than capacity, and the service that each tenant gets.
class Load {
 public:
  explicit Load(const SchedulerOptions& options = FewPlaces()) : rig_(options) {}

  base::SequenceId Send(uint64_t tenant, int prompt, int output, int priority = 0) {
    SequenceRequest request = Request(++last_, prompt, output);
    request.prompt.assign(prompt, static_cast<base::TokenId>(last_ % 1000));
    request.tenant = tenant;
    request.priority = priority;
    request.speculate = false;
    EXPECT_TRUE(rig_.scheduler.Add(request, now_).ok());
    requests_[last_] = std::move(request);
    return last_;
  }
  void Step() {
    now_ += 10 * kMillisecond;
    const StepPlan plan = rig_.MustPlan(now_);
    for (const PlanSequence& sequence : plan.sequences) {
      if (!admitted_.insert(sequence.id).second) continue;
      order_.push_back(sequence.id);
      const SequenceRequest& request = requests_.at(sequence.id);
      served_[request.tenant] += static_cast<int64_t>(request.prompt.size());
    }
    for (const TokensEvent& event : Of<TokensEvent>(rig_.Commit(plan, now_))) {
      served_[requests_.at(event.id).tenant] += 2 * static_cast<int64_t>(event.tokens.size());
    }
    rig_.scheduler.Check();
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) Step();
  }
  void Drain() {
    while (rig_.scheduler.stats().waiting + rig_.scheduler.stats().running > 0) Step();
  }
  void Sleep(Nanos time) { now_ += time; }
  // A tenant's share of all service since the last Forget.
  double Share(uint64_t tenant) const {
    int64_t all = 0;
    for (const auto& [id, service] : served_) all += service;
    return static_cast<double>(served_.at(tenant)) / static_cast<double>(all);
  }
  void Forget() { served_.clear(); }
  const std::vector<base::SequenceId>& order() const { return order_; }
  bool Admitted(base::SequenceId id) const { return admitted_.contains(id); }

 private:
  Rig rig_;
  Nanos now_ = 0;
  base::SequenceId last_ = 0;
  std::map<base::SequenceId, SequenceRequest> requests_;
  std::map<uint64_t, int64_t> served_;
  std::set<base::SequenceId> admitted_;
  std::vector<base::SequenceId> order_;
};

TEST(FairSharesTest, TenTimesTheDemandGetsTheSameShare) {
  Load load;
  for (int i = 0; i < 2000; ++i) load.Send(1, 6, 20);
  for (int i = 0; i < 200; ++i) load.Send(2, 6, 20);
  load.Steps(500);
  EXPECT_NEAR(load.Share(1), 0.5, 0.02);
}

TEST(FairSharesTest, SharesCountTokensNotRequests) {
  Load load;
  std::mt19937 random(1);
  std::uniform_int_distribution<> small(1, 10), large(10, 30);
  for (int i = 0; i < 3000; ++i) {
    load.Send(1, small(random), small(random));
    load.Send(2, large(random), large(random));
    load.Send(3, small(random), large(random));
  }
  load.Steps(1500);
  for (uint64_t tenant : {1, 2, 3}) EXPECT_NEAR(load.Share(tenant), 1.0 / 3, 0.03) << tenant;
}

TEST(FairSharesTest, NewTenantIsNotDelayedByABacklog) {
  Load load;
  for (int i = 0; i < 1000; ++i) load.Send(1, 4, 20);
  load.Steps(100);
  load.Forget();
  const base::SequenceId one = load.Send(2, 4, 20);
  load.Steps(25);  // until a running one ends
  EXPECT_TRUE(load.Admitted(one));
  for (int i = 0; i < 200; ++i) load.Send(2, 4, 20);
  load.Forget();
  load.Steps(400);
  EXPECT_NEAR(load.Share(2), 0.5, 0.03);
}

TEST(FairSharesTest, IdleTimeIsNoCredit) {
  Load load;
  for (int i = 0; i < 50; ++i) load.Send(2, 4, 10);
  for (int i = 0; i < 2000; ++i) load.Send(1, 4, 10);
  load.Steps(1000);  // the second has long been idle
  for (int i = 0; i < 1000; ++i) load.Send(2, 4, 10);
  load.Forget();
  load.Steps(400);
  EXPECT_NEAR(load.Share(2), 0.5, 0.03);
}

TEST(FairSharesTest, SingleTenantIsFirstComeFirstServed) {
  Load load;
  std::mt19937 random(2);
  std::vector<base::SequenceId> sent;
  for (int i = 0; i < 300; ++i) {
    sent.push_back(load.Send(7, 1 + random() % 20, 1 + random() % 20));
    if (random() % 3 == 0) load.Step();
  }
  load.Drain();
  EXPECT_EQ(load.order(), sent);
}

// By time of arrival, less the waiting time that its priority counts as.
TEST(FairSharesTest, SingleTenantIsServedInQueueOrder) {
  SchedulerOptions options = FewPlaces();
  options.max_sequences = 1;
  options.priority_ageing = 15 * kMillisecond;
  Load load(options);
  std::mt19937 random(3);
  std::vector<std::pair<int64_t, base::SequenceId>> by_priority;
  for (int i = 0; i < 200; ++i) {
    const int priority = static_cast<int>(random() % 5) - 2;
    const base::SequenceId id = load.Send(7, 2, 2, priority);
    by_priority.emplace_back(i * kMillisecond - priority * options.priority_ageing, id);
    load.Sleep(kMillisecond);
  }
  std::sort(by_priority.begin(), by_priority.end());
  load.Drain();
  ASSERT_EQ(load.order().size(), by_priority.size());
  for (size_t i = 0; i < by_priority.size(); ++i)
    EXPECT_EQ(load.order()[i], by_priority[i].second) << i;
}

TEST(FairSharesTest, PriorityComesBeforeShares) {
  SchedulerOptions options = FewPlaces();
  options.max_sequences = 1;
  Load load(options);
  load.Send(1, 4, 4);
  load.Steps(1);
  const base::SequenceId plain = load.Send(2, 4, 4);  // of a tenant without service so far
  const base::SequenceId urgent = load.Send(1, 4, 4, /*priority=*/1);
  load.Drain();
  EXPECT_THAT(load.order(), ElementsAre(1, urgent, plain));
}

TEST(FairSharesTest, LongWaitingOvertakesPriorityAndShares) {
  SchedulerOptions options = FewPlaces();
  options.max_sequences = 1;
  options.priority_ageing = 100 * kMillisecond;
  Load load(options);
  load.Send(1, 4, 2);
  load.Step();
  load.Step();
  const base::SequenceId old_one = load.Send(1, 4, 2);  // of the tenant with the most service
  uint64_t tenant = 1;
  int steps = 0;
  while (!load.Admitted(old_one) && steps < 1000) {  // one of high priority always waits
    load.Send(++tenant, 4, 2, /*priority=*/5);
    load.Step();
    ++steps;
  }
  EXPECT_LT(steps, 150);
}

TEST(FairSharesTest, MoreTenantsThanSequencesAreAllServed) {
  Load load;
  for (int round = 0; round < 20; ++round) {
    for (uint64_t tenant = 1; tenant <= 50; ++tenant) load.Send(tenant, 3, 5);
  }
  load.Steps(600);
  for (uint64_t tenant = 1; tenant <= 50; ++tenant) {
    EXPECT_NEAR(load.Share(tenant), 1.0 / 50, 0.005) << tenant;
  }
}

TEST(TenantSharesTest, IdleTenantsAreForgotten) {
  TenantShares shares;
  for (uint64_t tenant = 1; tenant <= 100'000; ++tenant) {
    shares.Arrive(tenant);
    shares.StopWaiting(tenant);
    shares.Charge(tenant, 10);
    shares.Leave(tenant);
    ASSERT_LE(shares.known(), TenantShares::kMaxIdle);
  }
  shares.Check();
}

TEST(TenantSharesTest, TenantAboveTheLevelIsRememberedUntilTheLevelReachesIt) {
  TenantShares shares;
  const auto serve = [&](uint64_t tenant, int64_t service) {
    shares.Arrive(tenant);
    shares.StopWaiting(tenant);
    shares.Charge(tenant, service);
    shares.Leave(tenant);
  };
  shares.Arrive(1);  // waits throughout
  serve(2, 100);
  shares.Arrive(2);
  EXPECT_EQ(shares.served(2), 100);  // leaving and coming back does not reset the count
  EXPECT_EQ(shares.served(1), 0);
  shares.StopWaiting(2);
  shares.Leave(2);
  EXPECT_EQ(shares.known(), 2u);
  shares.Charge(1, 150);
  shares.Arrive(3);
  EXPECT_EQ(shares.served(3), 150);
  shares.StopWaiting(3);
  shares.Leave(3);
  EXPECT_EQ(shares.known(), 1u);  // 2 is not above the level any more
  shares.Check();
}

}  // namespace
}  // namespace specfabric::scheduler
