#include "scheduler/simulation/simulator.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::scheduler {
namespace {

using base::kMicrosecond;
using base::kMillisecond;
using testing::HasSubstr;

SimulationOptions Options() {
  SimulationOptions options;
  options.scheduler.kv_blocks = 4000;
  options.scheduler.max_context = 1000;
  options.scheduler.max_waiting = 10'000;
  options.step.weights = 10 * kMillisecond;
  options.draft.weights = 100 * kMicrosecond;
  options.draft.tree = speculation::GrowthPolicy::Parse("1,1,1").value();
  return options;
}

// One request at a time, far apart.
std::vector<Arrival> Alone(int count, int32_t output) {
  std::vector<Arrival> arrivals;
  for (int i = 0; i < count; ++i) arrivals.push_back({i * 100 * base::kSecond, 10, output});
  return arrivals;
}

TEST(SimulatorTest, WithoutDraftsATokenTakesAStep) {
  const SimulationReport report = Simulate(Options(), Alone(3, 11));
  EXPECT_EQ(report.requests, 3);
  EXPECT_EQ(report.output_tokens, 33);
  EXPECT_NEAR(report.ttft.p99, 0.01, 1e-9);
  EXPECT_NEAR(report.tpot.p50, 0.01, 1e-9);
  EXPECT_EQ(report.accepted_per_round, 0);
}

TEST(SimulatorTest, RowsCountOnceTheyTakeLongerThanTheWeights) {
  SimulationOptions options = Options();
  options.step = {.fixed = 5, .weights = 1000, .row_ns = 300, .context_ns = 2};
  StepPlan plan;
  plan.tokens.resize(3);
  plan.sequences.resize(2);
  plan.sequences[0].kv_len = 40;
  plan.sequences[0].row_count = 1;
  plan.sequences[1].kv_len = 7;
  plan.sequences[1].row_count = 2;
  EXPECT_EQ(options.step.Of(plan), 5 + 1000 + 2 * 50);
  plan.tokens.resize(4);
  EXPECT_EQ(options.step.Of(plan), 5 + 1200 + 2 * 50);
}

// Leviathan et al. 2023, equation 1.
TEST(SimulatorTest, ChainIsAcceptedAsTheFormulaSays) {
  for (double chance : {0.5, 0.8}) {
    SimulationOptions options = Options();
    options.drafts = 1;
    options.acceptance = {.first = chance, .further = 0, .spread = 0};
    const SimulationReport report = Simulate(options, Alone(40, 900));
    const double tokens = (1 - std::pow(chance, 4)) / (1 - chance);
    EXPECT_NEAR(report.accepted_per_round + 1, tokens, 0.02 * tokens);
    EXPECT_EQ(report.draft_misses, 0u);
    // A round is the step and the time of three levels of drafting.
    EXPECT_NEAR(report.tpot.p50, (0.01 + 0.0003) / tokens, 0.03 * 0.01);
  }
}

TEST(SimulatorTest, DraftingAheadHidesTheDraft) {
  SimulationOptions options = Options();
  options.drafts = 1;
  options.draft.weights = 1 * kMillisecond;
  options.acceptance = {.first = 0.95, .further = 0, .spread = 0};
  const SimulationReport in_time = Simulate(options, Alone(20, 900));
  options.draft.ahead.nodes = 200;
  const SimulationReport ahead = Simulate(options, Alone(20, 900));
  EXPECT_NEAR(ahead.accepted_per_round, in_time.accepted_per_round, 0.15);
  // A round of 13 ms has 3 ms of drafting, and none if all three draft tokens were right and the
  // token after them was the one run ahead.
  const double missed = 1 - std::pow(0.95, 4);
  EXPECT_NEAR(ahead.tpot.p50 / in_time.tpot.p50, (10 + 3 * missed) / 13, 0.04);
  EXPECT_LT(ahead.drafts_busy, 0.3 * in_time.drafts_busy);
}

TEST(SimulatorTest, SiblingsTakeTheirShare) {
  SimulationOptions options = Options();
  options.drafts = 1;
  options.draft.tree = speculation::GrowthPolicy::Parse("3").value();
  options.acceptance = {.first = 0.5, .further = 0.4, .spread = 0};
  const SimulationReport report = Simulate(options, Alone(40, 900));
  // A few rounds go without a draft, to find out what that yields.
  EXPECT_NEAR(report.accepted_per_round, 0.5 + 0.5 * 0.4 + 0.5 * 0.6 * 0.4, 0.03);
}

TEST(SimulatorTest, TooSlowADraftIsNotWaitedForAndCostsLittle) {
  SimulationOptions options = Options();
  options.drafts = 1;
  options.draft.weights = 200 * kMillisecond;
  const SimulationReport report = Simulate(options, Alone(2, 500));
  EXPECT_GT(report.draft_misses + report.draft_skips, 0u);
  EXPECT_EQ(report.accepted_per_round, 0);
  EXPECT_EQ(report.output_tokens, 1000);
  EXPECT_LT(report.tpot.p50, 0.013);
}

TEST(SimulatorTest, MeasuredPassesAreInterpolated) {
  const std::vector<PassTime> measured = {{1, 400}, {8, 470}, {64, 1030}};
  EXPECT_EQ(Interpolate(measured, 1), 400);
  EXPECT_EQ(Interpolate(measured, 4), 430);
  EXPECT_EQ(Interpolate(measured, 8), 470);
  EXPECT_EQ(Interpolate(measured, 36), 750);
  EXPECT_EQ(Interpolate(measured, 128), 2060);
  StepPlan plan;
  plan.tokens.resize(36);
  EXPECT_EQ((StepCost{.fixed = 5, .weights = 9999, .measured = measured}).Of(plan), 5 + 750);
}

// Per token layers x hidden x 2 bytes; what a step sends waits for what the step before has sent.
TEST(SimulatorTest, StatesTakeTheirBytesOverTheLink) {
  const StateCost eagle3_8b = {.layers = 3, .hidden = 4096, .latency = 155 * kMicrosecond};
  EXPECT_EQ(eagle3_8b.BytesPerToken(), 24 * 1024);
  EXPECT_EQ((StateCost{.layers = 5, .hidden = 7168}).BytesPerToken(), 71'680);
  StateCost cost = eagle3_8b;
  cost.bytes_per_second = 24.576e9;  // a token a microsecond
  ModelledStates states;
  EXPECT_EQ(states.Send(cost, 100, 1000 * kMicrosecond), (1000 + 100 + 155) * kMicrosecond);
  EXPECT_EQ(states.Send(cost, 4, 1040 * kMicrosecond), (1100 + 4 + 155) * kMicrosecond);
  EXPECT_EQ(states.Send(cost, 1, 2000 * kMicrosecond), (2000 + 1 + 155) * kMicrosecond);
  EXPECT_EQ(states.tokens(), 105);
  EXPECT_EQ(states.bytes(), 105 * 24 * 1024);
}

// A round of a chain of three that is always accepted, after a prompt in a step of its own. Every
// wait for a draft is the same, but for the first, whose prompt has more states.
struct Exposed {
  DrafterKind kind;
  bool colocated;
  base::Nanos wait;  // in each round
};

TEST(SimulatorTest, ExposedDraftTimeIsPassesAndWire) {
  constexpr base::Nanos kPass = 100 * kMicrosecond, kRoundTrip = 30 * kMicrosecond;
  constexpr base::Nanos kLatency = 50 * kMicrosecond;
  constexpr int64_t kRoundTokens = 4, kPrompt = 10;
  constexpr base::Nanos kToken = 2 * kMicrosecond;  // on the link
  constexpr base::Nanos kStates = kLatency + kRoundTokens * kToken;
  for (const Exposed& expected :
       {Exposed{DrafterKind::kModel, false, 3 * kPass + kRoundTrip},
        Exposed{DrafterKind::kPard, false, kPass + kRoundTrip},
        Exposed{DrafterKind::kEagle3, false, 3 * kPass + kRoundTrip + kStates},
        Exposed{DrafterKind::kDspark, false, kPass + kRoundTrip + kStates},
        Exposed{DrafterKind::kModel, true, 3 * kPass}, Exposed{DrafterKind::kPard, true, kPass},
        Exposed{DrafterKind::kEagle3, true, 3 * kPass},
        Exposed{DrafterKind::kDspark, true, kPass}}) {
    SimulationOptions options = Options();
    options.scheduler.speculation = SpeculationPolicy::kAlways;
    options.drafts = 1;
    options.place = expected.colocated ? DraftPlace::kTurns : DraftPlace::kApart;
    options.draft.kind = expected.kind;
    options.draft.weights = kPass;
    options.draft.round_trip = kRoundTrip;
    options.states = {.layers = 1,
                      .hidden = 500,
                      .latency = kLatency,
                      .bytes_per_second = 1000 / base::ToSeconds(kToken)};
    options.acceptance = {.first = 0.99, .further = 0, .spread = 0};
    const int rounds = 10;  // short of the first token that no draft proposes
    const SimulationReport report = Simulate(options, Alone(1, 1 + kRoundTokens * rounds));
    ASSERT_EQ(report.accepted_per_round, 3);
    const bool sends = ReadsStates(expected.kind) && !expected.colocated;
    const base::Nanos waited =
        rounds * expected.wait + (sends ? (kPrompt - kRoundTokens) * kToken : 0);
    EXPECT_NEAR(report.exposed_draft * (rounds + 1), base::ToSeconds(waited), 1e-9)
        << Name(expected.kind) << (expected.colocated ? " co-located" : " remote");
    EXPECT_EQ(report.states_sent, sends ? kPrompt + kRoundTokens * rounds : 0);
    EXPECT_EQ(report.state_bytes, 1000 * report.states_sent);
  }
}

TEST(SimulatorTest, AParallelDraftGoesAheadAtNextRoots) {
  SimulationOptions options = Options();
  options.drafts = 1;
  options.draft.kind = DrafterKind::kPard;
  options.draft.weights = 2 * kMillisecond;
  options.acceptance = {.first = 0.7, .further = 0.9, .spread = 0};
  const SimulationReport in_time = Simulate(options, Alone(20, 900));
  options.draft.ahead.nodes = 40;
  const SimulationReport ahead = Simulate(options, Alone(20, 900));
  EXPECT_NEAR(ahead.accepted_per_round, in_time.accepted_per_round, 0.1);
  EXPECT_NEAR(in_time.exposed_draft, 0.002, 1e-4);
  EXPECT_LT(ahead.exposed_draft, 0.25 * in_time.exposed_draft);
}

// What shares a device takes turns, and is busy no longer than the time there is.
TEST(SimulatorTest, ACoLocatedDrafterTakesTurnsWithItsTarget) {
  SimulationOptions options = Options();
  options.targets = options.drafts = 2;
  options.step = {
      .fixed = 200 * kMicrosecond, .weights = 1 * kMillisecond, .row_ns = 200'000, .context_ns = 0};
  options.draft.weights = 1500 * kMicrosecond;
  options.acceptance = {.first = 0.9, .further = 0, .spread = 0.05};
  options.scheduler.speculation = SpeculationPolicy::kAlways;
  options.draft.ahead.nodes = 200;
  const std::vector<Arrival> arrivals(16, Arrival{0, 10, 300});
  const SimulationReport apart = Simulate(options, arrivals);
  EXPECT_GT(apart.target_busy + apart.drafts_busy, 1.02);
  options.place = DraftPlace::kTurns;
  const SimulationReport shared = Simulate(options, arrivals);
  EXPECT_EQ(shared.requests, 16);
  EXPECT_GT(shared.accepted_per_round, 1);
  EXPECT_LE(shared.target_busy + shared.drafts_busy, 1 + 1e-9);
}

// A round of one sequence: three passes while the target waits, and a step, in most of which the
// draft worker runs ahead, where it does.
TEST(SimulatorTest, PassesOnOneDeviceAtOnceAreSlower) {
  SimulationOptions options = Options();
  options.scheduler.speculation = SpeculationPolicy::kAlways;
  options.drafts = 1;
  options.draft.round_trip = 0;
  options.draft.weights = 1 * kMillisecond;
  options.acceptance = {.first = 0.5, .further = 0, .spread = 0};
  const std::vector<Arrival> alone = Alone(1, 400);
  const auto duration = [&](DraftPlace place, int32_t ahead) {
    options.place = place;
    options.draft.ahead.nodes = ahead;
    return Simulate(options, alone).duration;
  };
  // Nothing runs at once where nothing is drafted ahead.
  EXPECT_NEAR(duration(DraftPlace::kShared, 0), duration(DraftPlace::kApart, 0), 1e-6);
  const double apart = duration(DraftPlace::kApart, 200);
  const double shared = duration(DraftPlace::kShared, 200);
  EXPECT_GT(shared, 1.4 * apart);
  options.target_speed = options.draft_speed = 1;
  EXPECT_NEAR(duration(DraftPlace::kShared, 200), apart, 1e-6);
}

// Where arithmetic bounds a step, half of the sequences are verified while drafts of the other half
// are on their way.
TEST(SimulatorTest, TwoCohortsHideTheDrafts) {
  SimulationOptions options = Options();
  options.drafts = 2;
  options.step = {
      .fixed = 200 * kMicrosecond, .weights = 1 * kMillisecond, .row_ns = 200'000, .context_ns = 0};
  options.draft.weights = 1500 * kMicrosecond;
  options.acceptance = {.first = 0.9, .further = 0, .spread = 0.05};
  std::vector<Arrival> arrivals(8, Arrival{0, 10, 900});
  options.scheduler.speculation = SpeculationPolicy::kAlways;
  const SimulationReport together = Simulate(options, arrivals);
  options.scheduler.speculation = SpeculationPolicy::kGoodput;
  const SimulationReport ours = Simulate(options, arrivals);
  EXPECT_LT(together.target_busy, 0.7);
  EXPECT_GT(ours.target_busy, 0.9);
  EXPECT_GT(ours.tokens_per_second, 1.25 * together.tokens_per_second);
}

TEST(SimulatorTest, IsDeterministic) {
  SimulationOptions options = Options();
  options.drafts = 3;
  const auto arrivals = PoissonArrivals(100, 5, 50, 60, 4);
  const SimulationReport a = Simulate(options, arrivals), b = Simulate(options, arrivals);
  EXPECT_EQ(a.tokens_per_second, b.tokens_per_second);
  EXPECT_EQ(a.ttft.p99, b.ttft.p99);
  options.seed = 2;
  EXPECT_NE(Simulate(options, arrivals).tpot.p50, a.tpot.p50);
}

TEST(SimulatorTest, OverloadQueuesAndAllRequestsEnd) {
  SimulationOptions options = Options();
  options.drafts = 2;
  options.scheduler.max_sequences = 8;
  const auto arrivals = PoissonArrivals(400, 1000, 50, 40, 4);
  const SimulationReport report = Simulate(options, arrivals);
  EXPECT_EQ(report.requests, 400);
  EXPECT_GT(report.ttft.p90, 1.0) << "they wait their turn";
  EXPECT_NEAR(report.target_busy, 1, 0.3);
  options.scheduler.max_waiting = 10;
  EXPECT_GT(Simulate(options, arrivals).refused, 100);
}

TEST(SimulatorTest, TargetsThatShareAPoolScale) {
  SimulationOptions options = Options();
  options.draft.round_trip = 20 * kMicrosecond;
  const auto of = [&](int targets, RoutePolicy policy) {
    options.targets = targets;
    options.drafts = 3 * targets;
    options.router.policy = policy;
    return Simulate(options, std::vector<Arrival>(6 * targets, Arrival{0, 10, 400}));
  };
  for (RoutePolicy policy : {RoutePolicy::kAffinity, RoutePolicy::kRoundRobin,
                             RoutePolicy::kLeastLoaded, RoutePolicy::kLatency}) {
    const SimulationReport one = of(1, policy), many = of(16, policy);
    EXPECT_EQ(many.requests, 96);
    EXPECT_EQ(many.output_tokens, 16 * one.output_tokens);
    EXPECT_GT(many.tokens_per_second, 0.9 * 16 * one.tokens_per_second) << Name(policy);
    EXPECT_GT(many.accepted_per_round, 0.9 * one.accepted_per_round) << Name(policy);
  }
}

// A pool with fewer sessions than there are sequences: the others are served without drafts.
TEST(SimulatorTest, FullPoolRefusesAndAllRequestsEnd) {
  SimulationOptions options = Options();
  options.targets = 2;
  options.drafts = 2;
  options.draft_sessions = 3;
  const std::vector<Arrival> arrivals(20, Arrival{0, 10, 200});
  const SimulationReport full = Simulate(options, arrivals);
  EXPECT_EQ(full.requests, 20);
  EXPECT_GT(full.accepted_per_round, 0.1);
  options.draft_sessions = 64;
  EXPECT_GT(Simulate(options, arrivals).accepted_per_round, 1.5 * full.accepted_per_round);
}

TEST(ArrivalsTest, PoissonHasItsRateAndLengths) {
  const auto arrivals = PoissonArrivals(10'000, 20, 100, 50, 1);
  ASSERT_EQ(arrivals.size(), 10'000u);
  EXPECT_NEAR(base::ToSeconds(arrivals.back().time), 500, 20);
  double prompt = 0, output = 0;
  for (const Arrival& arrival : arrivals) {
    prompt += arrival.prompt / 1e4;
    output += arrival.output / 1e4;
    EXPECT_GE(arrival.prompt, 50);
    EXPECT_LE(arrival.prompt, 150);
  }
  EXPECT_NEAR(prompt, 100, 2);
  EXPECT_NEAR(output, 50, 1);
}

TEST(ArrivalsTest, ParsesCsv) {
  const auto arrivals = ParseArrivals("seconds,prompt,output\n0.5,10,20\r\n\n2,1,1\n");
  ASSERT_TRUE(arrivals.ok()) << arrivals.status();
  ASSERT_EQ(arrivals->size(), 2u);
  EXPECT_EQ(arrivals->at(0).time, 500 * kMillisecond);
  EXPECT_EQ(arrivals->at(0).prompt, 10);
  EXPECT_EQ(arrivals->at(1).output, 1);
}

TEST(ArrivalsTest, ErrorsNameTheLine) {
  for (const char* bad : {"1,2,3\n1,2", "1,2,3\n0.5,2,3", "1,2,3\n2,0,3", "1,2,3\n2,3,-1",
                          "1,2,3\nx,3,1", "1,2,3\nnan,1,1", "1,2,3\n1e300,1,1"}) {
    const auto arrivals = ParseArrivals(bad);
    ASSERT_FALSE(arrivals.ok()) << bad;
    EXPECT_THAT(std::string(arrivals.status().message()), HasSubstr("line 2 is"));
  }
}

}  // namespace
}  // namespace specfabric::scheduler
