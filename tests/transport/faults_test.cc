// The fault injector's decisions, and parsing its options.

#include "transport/faults.h"

#include <array>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace specfabric::transport {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kFrames = 100'000;

std::vector<FaultDecision> DecisionsOf(const FaultOptions& options, uint32_t payload_bytes = 100,
                                       int frames = kFrames) {
  FaultInjector injector(options);
  std::vector<FaultDecision> decisions;
  for (int i = 0; i < frames; ++i) decisions.push_back(injector.Decide(payload_bytes));
  return decisions;
}

auto Fields(const FaultDecision& decision) {
  return std::tuple(decision.copies, decision.delay, decision.copy_delay, decision.corrupt,
                    decision.corrupt_at, decision.corrupt_with, decision.faulty);
}

// Within five standard deviations: the seed is fixed, so this holds always or never.
template <typename Condition>
void ExpectRate(const std::vector<FaultDecision>& decisions, double rate, Condition condition) {
  double hits = 0;
  for (const FaultDecision& decision : decisions) hits += condition(decision);
  const double frames = static_cast<double>(decisions.size());
  EXPECT_NEAR(hits, rate * frames, 5 * std::sqrt(frames * rate * (1 - rate)));
}

TEST(ParseFaultsTest, EmptyIsNoFaults) {
  const auto faults = ParseFaults("");
  ASSERT_TRUE(faults.ok());
  EXPECT_FALSE(faults->any());
}

TEST(ParseFaultsTest, EveryPartInAnyOrder) {
  const auto faults = ParseFaults(
      "seed=18446744073709551615,delay=5ms:.1,corrupt=1e-3,reorder=1,duplicate=.02,"
      "drop=0.01");
  ASSERT_TRUE(faults.ok()) << faults.status();
  EXPECT_EQ(faults->seed, UINT64_MAX);
  EXPECT_EQ(faults->delay, 5 * base::kMillisecond);
  EXPECT_EQ(faults->delay_part, .1);
  EXPECT_EQ(faults->corrupt, .001);
  EXPECT_EQ(faults->reorder, 1);
  EXPECT_EQ(faults->duplicate, .02);
  EXPECT_EQ(faults->drop, .01);
  EXPECT_EQ(faults->simulated_rtt, 0);
  EXPECT_TRUE(faults->any());
}

TEST(ParseFaultsTest, DelayWithoutAProbabilityIsForAllFrames) {
  const auto faults = ParseFaults("delay=1.5ms");
  ASSERT_TRUE(faults.ok()) << faults.status();
  EXPECT_EQ(faults->delay, 1'500 * base::kMicrosecond);
  EXPECT_EQ(faults->delay_part, 1);
}

TEST(ParseFaultsTest, SeedAloneIsNoFault) { EXPECT_FALSE(ParseFaults("seed=3")->any()); }

class BadFaultsTest : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(BadFaultsTest, OneLineWithWhatWasGivenAndWhatIsAllowed) {
  const auto& [text, given] = GetParam();
  const auto faults = ParseFaults(text);
  ASSERT_EQ(faults.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(faults.status().message());
  EXPECT_THAT(message, HasSubstr(absl::StrCat("'", given, "': allowed ")));
  EXPECT_THAT(message, Not(HasSubstr("\n")));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadFaultsTest,
    ::testing::Values(
        std::tuple("drop=1.5", "drop=1.5"), std::tuple("drop=-0.1", "drop=-0.1"),
        std::tuple("drop=nan", "drop=nan"), std::tuple("drop=inf", "drop=inf"),
        std::tuple("drop=", "drop="), std::tuple("drop", "drop"), std::tuple("drop=5%", "drop=5%"),
        std::tuple("duplicate=2", "duplicate=2"), std::tuple("reorder=x", "reorder=x"),
        std::tuple("corrupt=.1=.2", "corrupt=.1=.2"), std::tuple("delay=5", "delay=5"),
        std::tuple("delay=", "delay="), std::tuple("delay=-5ms", "delay=-5ms"),
        std::tuple("delay=inf", "delay=inf"), std::tuple("delay=61s", "delay=61s"),
        std::tuple("delay=5ms:", "delay=5ms:"), std::tuple("delay=5ms:2", "delay=5ms:2"),
        std::tuple("delay=5ms:.1:.1", "delay=5ms:.1:.1"), std::tuple("delay=:.1", "delay=:.1"),
        std::tuple("seed=-1", "seed=-1"), std::tuple("seed=x", "seed=x"),
        std::tuple("seed=18446744073709551616", "seed=18446744073709551616"),
        std::tuple("lose=.1", "lose=.1"), std::tuple("Drop=.1", "Drop=.1"), std::tuple(",", ""),
        std::tuple("drop=.1,", ""), std::tuple("=.1", "=.1"),
        std::tuple("drop=.1,corrupt=7,seed=1", "corrupt=7"),
        std::tuple("drop=.1,seed=1,drop=.1", "drop=.1")));

TEST(FaultInjectorTest, WithoutFaultsFramesPassUntouched) {
  for (const FaultDecision& decision : DecisionsOf(FaultOptions(), 100, 1000))
    EXPECT_EQ(Fields(decision), Fields({}));
}

TEST(FaultInjectorTest, SameSeedGivesTheSameDecisions) {
  FaultOptions options =
      ParseFaults("drop=.1,duplicate=.2,reorder=.1,corrupt=.3,delay=1ms:.2,seed=7").value();
  const auto first = DecisionsOf(options), second = DecisionsOf(options);
  options.seed = 8;
  const auto other = DecisionsOf(options);
  int different = 0;
  for (int i = 0; i < kFrames; ++i) {
    ASSERT_EQ(Fields(first[i]), Fields(second[i])) << "frame " << i;
    different += Fields(first[i]) != Fields(other[i]);
  }
  EXPECT_GT(different, kFrames / 2);
}

TEST(FaultInjectorTest, RatesMatchTheOptions) {
  const FaultOptions options =
      ParseFaults("drop=.02,duplicate=.05,reorder=.1,corrupt=.03,delay=9ms:.2,seed=3").value();
  const auto decisions = DecisionsOf(options);
  const double kept = 1 - options.drop;
  ExpectRate(decisions, .02, [](const FaultDecision& f) { return f.copies == 0; });
  ExpectRate(decisions, kept * .05, [](const FaultDecision& f) { return f.copies == 2; });
  ExpectRate(decisions, kept * .03, [](const FaultDecision& f) { return f.corrupt; });
  ExpectRate(decisions, kept * .1 * .8,
             [](const FaultDecision& f) { return f.delay == 2 * base::kMillisecond; });
  ExpectRate(decisions, kept * .9 * .2,
             [](const FaultDecision& f) { return f.delay == 9 * base::kMillisecond; });
  ExpectRate(decisions, kept * .1 * .2,
             [](const FaultDecision& f) { return f.delay == 11 * base::kMillisecond; });
  // Each copy has its own delay.
  ExpectRate(decisions, kept * .05 * .1 * .8,
             [](const FaultDecision& f) { return f.copy_delay == 2 * base::kMillisecond; });
  ExpectRate(decisions, kept * .05 * .1 * .8 * .9 * .8, [](const FaultDecision& f) {
    return f.copies == 2 && f.delay == 0 && f.copy_delay == 2 * base::kMillisecond;
  });
}

TEST(FaultInjectorTest, FaultyMarksEveryInjectedFault) {
  FaultOptions options =
      ParseFaults("drop=.1,duplicate=.2,reorder=.1,corrupt=.1,delay=1ms:.1").value();
  options.simulated_rtt = base::kMillisecond;
  int faulty = 0;
  for (const FaultDecision& decision : DecisionsOf(options)) {
    EXPECT_EQ(decision.faulty, decision.copies != 1 || decision.corrupt ||
                                   decision.delay != options.simulated_rtt / 2);
    faulty += decision.faulty;
  }
  EXPECT_GT(faulty, kFrames / 3);
  EXPECT_LT(faulty, kFrames / 2);
}

TEST(FaultInjectorTest, ProbabilityOneAlwaysHappens) {
  FaultOptions options;
  options.drop = 1;
  for (const FaultDecision& decision : DecisionsOf(options)) ASSERT_EQ(decision.copies, 0);
  options.drop = 0;
  options.duplicate = options.corrupt = 1;
  for (const FaultDecision& decision : DecisionsOf(options))
    ASSERT_TRUE(decision.copies == 2 && decision.corrupt);
}

TEST(FaultInjectorTest, CorruptionChangesAByteOfThePayload) {
  FaultOptions options;
  options.corrupt = 1;
  for (uint32_t bytes : {1u, 2u, 7u}) {
    std::array<int, 7> hits{};
    for (const FaultDecision& decision : DecisionsOf(options, bytes, 1000)) {
      ASSERT_TRUE(decision.corrupt);
      ASSERT_LT(decision.corrupt_at, bytes);
      ASSERT_NE(decision.corrupt_with, 0);
      ++hits[decision.corrupt_at];
    }
    for (uint32_t i = 0; i < bytes; ++i) EXPECT_GT(hits[i], 0) << i << " of " << bytes;
  }
  for (const FaultDecision& decision : DecisionsOf(options, UINT32_MAX, 1000))
    ASSERT_LT(decision.corrupt_at, UINT32_MAX);
}

TEST(FaultInjectorTest, NothingToCorruptInAnEmptyPayload) {
  FaultOptions options;
  options.corrupt = 1;
  for (const FaultDecision& decision : DecisionsOf(options, 0, 1000))
    ASSERT_EQ(Fields(decision), Fields({}));
}

TEST(FaultInjectorTest, HalfTheRoundTripDelaysEveryCopy) {
  FaultOptions options;
  options.simulated_rtt = 10 * base::kMillisecond;
  EXPECT_TRUE(options.any());
  for (const FaultDecision& decision : DecisionsOf(options, 100, 1000)) {
    ASSERT_EQ(decision.delay, 5 * base::kMillisecond);
    ASSERT_EQ(decision.copies, 1);
    ASSERT_FALSE(decision.faulty);
  }
  options.duplicate = 1;
  options.delay = base::kMillisecond;
  options.delay_part = .5;
  std::array<int, 2> late{};
  for (const FaultDecision& decision : DecisionsOf(options, 100, 1000)) {
    for (base::Nanos delay : {decision.delay, decision.copy_delay}) {
      ASSERT_TRUE(delay == 5 * base::kMillisecond || delay == 6 * base::kMillisecond);
      ++late[delay == 6 * base::kMillisecond];
    }
  }
  EXPECT_GT(late[0], 0);
  EXPECT_GT(late[1], 0);
}

// A run with a higher probability of one fault differs only in these faults.
TEST(FaultInjectorTest, OneFaultDoesNotChangeTheOthers) {
  FaultOptions options = ParseFaults("drop=.1,duplicate=.1,seed=9").value();
  const auto few = DecisionsOf(options);
  options.corrupt = .5;
  options.reorder = .5;
  const auto many = DecisionsOf(options, 7);
  for (int i = 0; i < kFrames; ++i) ASSERT_EQ(few[i].copies, many[i].copies) << "frame " << i;
}

}  // namespace
}  // namespace specfabric::transport
