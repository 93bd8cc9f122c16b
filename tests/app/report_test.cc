#include "app/perftest/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace specfabric::perftest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 1, 2, .. `count` us, in an order that is not theirs.
Samples Counting(int count) {
  Samples samples;
  samples.wire = "posix/memory";
  samples.payload_bytes = 8;
  for (int i = 0; i < count; ++i) samples.one_way_us.push_back((i * 7919) % count + 1);
  samples.seconds = 1;
  samples.bytes_copied = 3;
  return samples;
}

Plan PlanOf(TestKind test, int64_t iterations) {
  Plan plan;
  plan.test = test;
  plan.iterations = iterations;
  return plan;
}

nlohmann::json Json(const Plan& plan, const Samples& samples) {
  return nlohmann::json::parse(Report(plan, samples, Format::kJson));
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::vector<std::string> Words(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), {}};
}

TEST(Report, NamesTheWireOfThePayload) {
  const Plan plan = PlanOf(TestKind::kLogits, 10);
  Samples samples = Counting(10);
  EXPECT_EQ(Json(plan, samples)["payload_transport"], "");
  EXPECT_THAT(Report(plan, samples, Format::kTable), HasSubstr("over posix/memory, "));
  samples.payload_wire = "cuda_ipc/cuda";
  EXPECT_EQ(Json(plan, samples)["payload_transport"], "cuda_ipc/cuda");
  EXPECT_THAT(Report(plan, samples, Format::kTable),
              HasSubstr("over posix/memory (bytes: cuda_ipc/cuda), "));
}

TEST(Report, OfGpuMemorySaysHowRdmaComesAtIt) {
  Plan plan = PlanOf(TestKind::kLogits, 10);
  Samples samples = Counting(10);
  EXPECT_THAT(Report(plan, samples, Format::kTable), HasSubstr("host memory; "));
  plan.memory = transport::MemoryKind::kCuda;
  samples.gpudirect = "nvidia-peermem";
  EXPECT_THAT(Report(plan, samples, Format::kTable),
              HasSubstr("cuda memory (GPUDirect: nvidia-peermem); "));
}

TEST(Report, PercentilesAreByNearestRank) {
  const auto thousand = Json(PlanOf(TestKind::kLatency, 1000), Counting(1000));
  EXPECT_EQ(thousand["min_us"], 1);
  EXPECT_EQ(thousand["p50_us"], 500);
  EXPECT_EQ(thousand["p99_us"], 990);
  EXPECT_EQ(thousand["p999_us"], 999);
  EXPECT_EQ(thousand["max_us"], 1000);
  const auto three = Json(PlanOf(TestKind::kLatency, 3), Counting(3));
  EXPECT_EQ(three["p50_us"], 2);
  EXPECT_EQ(three["p99_us"], 3);
  EXPECT_EQ(three["p999_us"], 3);
}

TEST(Report, OneSampleIsAllOfThem) {
  Samples samples;
  samples.one_way_us = {4.5};
  const auto json = Json(PlanOf(TestKind::kTree, 1), samples);
  for (const char* name : {"min_us", "max_us", "p50_us", "avg_us", "p99_us", "p999_us"}) {
    EXPECT_EQ(json[name], 4.5) << name;
  }
  EXPECT_EQ(json["stdev_us"], 0);
  EXPECT_EQ(json["mb_per_s"], 0) << "no time has passed";
}

TEST(Report, AverageAndDeviationAreThoseOfAllSamples) {
  const auto json = Json(PlanOf(TestKind::kLatency, 1000), Counting(1000));
  EXPECT_DOUBLE_EQ(json["avg_us"], 500.5);
  // Of 1 .. n: sqrt((n^2 - 1) / 12).
  EXPECT_NEAR(json["stdev_us"], std::sqrt((1e6 - 1) / 12), 1e-9);
  // Far from zero, where a difference of large squares would be rounded away.
  Samples far;
  far.one_way_us = {1e9, 1e9 + 2};
  EXPECT_DOUBLE_EQ(Json(PlanOf(TestKind::kLatency, 2), far)["stdev_us"], 1);
}

TEST(Report, RatesCountBothDirectionsOfPingPongOnly) {
  Samples samples = Counting(100);
  samples.payload_bytes = 1 << 20;
  samples.seconds = 2;
  for (const TestKind test : {TestKind::kLatency, TestKind::kLogits}) {
    const auto json = Json(PlanOf(test, 100), samples);
    EXPECT_DOUBLE_EQ(json["messages_per_s"], 100) << Name(test);
    EXPECT_DOUBLE_EQ(json["mb_per_s"], 100) << Name(test);
  }
  EXPECT_DOUBLE_EQ(Json(PlanOf(TestKind::kTree, 100), samples)["mb_per_s"], 50);
}

TEST(Report, BandwidthHasNoLatencies) {
  Samples samples;
  samples.wire = "tcp/lo";
  samples.payload_bytes = 4096;
  samples.seconds = .5;
  const Plan plan = PlanOf(TestKind::kBandwidth, 1000);
  const auto json = Json(plan, samples);
  EXPECT_TRUE(json["p50_us"].is_null());
  EXPECT_TRUE(json["stdev_us"].is_null());
  EXPECT_DOUBLE_EQ(json["avg_us"], 500);
  EXPECT_DOUBLE_EQ(json["messages_per_s"], 2000);
  const auto lines = Split(Report(plan, samples, Format::kTable), '\n');
  ASSERT_EQ(lines.size(), 3);
  EXPECT_THAT(Words(lines[1]),
              ElementsAre("#bytes", "#iterations", "us/message", "MB/s", "messages/s"));
  EXPECT_THAT(Words(lines[2]), ElementsAre("4096", "1000", "500.000", "7.81", "2000"));
  EXPECT_THAT(Report(plan, samples, Format::kCsv),
              HasSubstr("tcp/lo,,host,4096,1000,,,,500.0,,,,"));
}

TEST(Report, TableHasTheColumnsOfUcxPerftest) {
  const auto lines =
      Split(Report(PlanOf(TestKind::kLatency, 1000), Counting(1000), Format::kTable), '\n');
  ASSERT_EQ(lines.size(), 3);
  EXPECT_THAT(lines[0], HasSubstr("am_lat over posix/memory, host memory"));
  EXPECT_THAT(Words(lines[1]), ElementsAre("#bytes", "#iterations", "t_min", "t_max", "t_typical",
                                           "t_avg", "t_stdev", "99%", "99.9%"));
  EXPECT_THAT(Words(lines[2]), ElementsAre("8", "1000", "1.000", "1000.000", "500.000", "500.500",
                                           "288.675", "990.000", "999.000"));
}

TEST(Report, CsvNamesEveryValueOfTheJson) {
  const Plan plan = PlanOf(TestKind::kLogits, 1000);
  const auto lines = Split(Report(plan, Counting(1000), Format::kCsv), '\n');
  ASSERT_EQ(lines.size(), 2);
  const auto names = Split(lines[0], ','), values = Split(lines[1], ',');
  const auto json = Json(plan, Counting(1000));
  ASSERT_EQ(names.size(), json.size());
  ASSERT_EQ(values.size(), names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    const auto& value = json.at(names[i]);
    EXPECT_EQ(values[i], value.is_string() ? value.get<std::string>() : value.dump()) << names[i];
  }
  EXPECT_EQ(json["bytes_copied"], 3);
  EXPECT_EQ(json["test"], "logits");
}

}  // namespace
}  // namespace specfabric::perftest
