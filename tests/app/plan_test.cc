#include "app/perftest/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "nlohmann/json.hpp"

namespace specfabric::perftest {
namespace {

using ::testing::HasSubstr;

constexpr TestKind kTests[] = {TestKind::kLatency, TestKind::kBandwidth, TestKind::kTree,
                               TestKind::kLogits};

Plan SomePlan(TestKind test, transport::MemoryKind memory) {
  Plan plan;
  plan.test = test;
  plan.bytes = 4'096'000;
  plan.iterations = 123'456;
  plan.warm_up = 7;
  plan.window = 48;
  plan.memory = memory;
  return plan;
}

TEST(Plan, ReadsBackWhatItWrote) {
  for (const TestKind test : kTests) {
    for (const auto memory : {transport::MemoryKind::kHost, transport::MemoryKind::kCuda}) {
      const Plan plan = SomePlan(test, memory);
      const auto read = Decode(Encode(plan));
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(read->test, plan.test);
      EXPECT_EQ(read->bytes, plan.bytes);
      EXPECT_EQ(read->iterations, plan.iterations);
      EXPECT_EQ(read->warm_up, plan.warm_up);
      EXPECT_EQ(read->window, plan.window);
      EXPECT_EQ(read->memory, plan.memory);
    }
  }
}

TEST(Plan, NamesParse) {
  for (const TestKind test : kTests) EXPECT_EQ(*ParseTest(Name(test)), test);
  EXPECT_THAT(base::Message(ParseTest("am_latency").status()),
              HasSubstr("-t am_latency: must be am_lat, am_bw, tree or logits"));
  EXPECT_THAT(base::Message(ParseMemory("device").status()),
              HasSubstr("-m device: must be host or cuda"));
}

struct Bound {
  const char* field;
  const char* flag;
  int64_t low, high;
};

class Bounds : public ::testing::TestWithParam<Bound> {};

TEST_P(Bounds, AreKeptByTheDecoder) {
  const auto [field, flag, low, high] = GetParam();
  nlohmann::json json = nlohmann::json::parse(Encode(Plan()));
  for (const int64_t inside : {low, high}) {
    json[field] = static_cast<uint64_t>(inside);
    EXPECT_TRUE(Decode(json.dump()).ok()) << json << " " << Decode(json.dump()).status();
  }
  json[field] = static_cast<uint64_t>(high + 1);
  EXPECT_FALSE(Decode(json.dump()).ok()) << json;
  if (low > 0) {
    json[field] = static_cast<uint64_t>(low - 1);
    EXPECT_THAT(base::Message(Decode(json.dump()).status()), HasSubstr(flag));
  }
  // What would be inside once it was cut to 32 bits, or taken for a signed number.
  for (const uint64_t large :
       {(uint64_t{1} << 32) + low, (uint64_t{1} << 63) + low, UINT64_MAX, uint64_t{1} << 62}) {
    json[field] = large;
    EXPECT_FALSE(Decode(json.dump()).ok()) << json;
  }
  for (const nlohmann::json& other :
       {nlohmann::json(-1), nlohmann::json(8.5), nlohmann::json("8"), nlohmann::json(nullptr),
        nlohmann::json(true), nlohmann::json::array({8})}) {
    json[field] = other;
    EXPECT_FALSE(Decode(json.dump()).ok()) << json;
  }
  json.erase(field);
  EXPECT_FALSE(Decode(json.dump()).ok()) << json;
}

INSTANTIATE_TEST_SUITE_P(Plan, Bounds,
                         ::testing::Values(Bound{"bytes", "-s", 1, 1 << 30},
                                           Bound{"iterations", "-n", 1, kMaxIterations},
                                           Bound{"warm_up", "-w", 0, kMaxIterations},
                                           Bound{"window", "-O", 1, kMaxWindow}),
                         [](const auto& info) { return std::string(info.param.field); });

TEST(Plan, SlotsStayWithinMemory) {
  Plan plan;
  plan.test = TestKind::kBandwidth;
  plan.bytes = 1 << 30;
  plan.window = 4;
  EXPECT_TRUE(Check(plan).ok());
  plan.window = 5;
  EXPECT_THAT(base::Message(Check(plan)), HasSubstr("-O 5: takes 10737418240 bytes of slots"));
  EXPECT_FALSE(Decode(Encode(plan)).ok());
  plan.test = TestKind::kTree;
  EXPECT_TRUE(Check(plan).ok()) << "a tree has no slots";
}

TEST(Plan, RefusesWhatIsNoPlan) {
  const std::string good = Encode(Plan());
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(Decode(good.substr(0, length)).ok()) << length;
  }
  for (const std::string& text :
       {std::string("[]"), std::string("null"), std::string("\0\1\2", 3), good + good, good + "x",
        std::string(2000, '['), std::string("\xff\xfe")}) {
    EXPECT_FALSE(Decode(text).ok()) << text;
  }
  EXPECT_FALSE(Decode(good + std::string(5000, ' ')).ok()) << "too long, though JSON";
}

TEST(Plan, RefusesNamesThatItDoesNotKnow) {
  for (const char* field : {"test", "memory"}) {
    nlohmann::json json = nlohmann::json::parse(Encode(Plan()));
    for (const nlohmann::json& other :
         {nlohmann::json("x"), nlohmann::json(""), nlohmann::json(1), nlohmann::json(nullptr)}) {
      json[field] = other;
      EXPECT_FALSE(Decode(json.dump()).ok()) << json;
    }
  }
}

}  // namespace
}  // namespace specfabric::perftest
