#include "app/perftest/plan.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace specfabric::perftest {
namespace {

constexpr std::array kTests = {TestKind::kLatency, TestKind::kBandwidth, TestKind::kTree,
                               TestKind::kLogits};
// Of all slots of one side: so that a typing error does not take the machine's memory.
constexpr int64_t kMaxPoolBytes = int64_t{8} << 30;
// Plans are a few hundred bytes; nothing longer is parsed.
constexpr size_t kMaxPlanBytes = 4096;

absl::Status CheckPool(const Plan& plan) {
  if (plan.test == TestKind::kTree) return absl::OkStatus();
  const int64_t bytes = int64_t{SlotsFor(plan)} * plan.bytes;
  if (bytes <= kMaxPoolBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("-t ", Name(plan.test), " with ", plan.bytes, " bytes a message",
                   plan.test == TestKind::kBandwidth ? absl::StrCat(" and -O ", plan.window) : "",
                   ": takes ", bytes, " bytes of slots, must be at most ", kMaxPoolBytes));
}

}  // namespace

const char* Name(TestKind test) {
  switch (test) {
    case TestKind::kLatency:
      return "am_lat";
    case TestKind::kBandwidth:
      return "am_bw";
    case TestKind::kTree:
      return "tree";
    case TestKind::kLogits:
      return "logits";
  }
  return "";
}

absl::StatusOr<TestKind> ParseTest(absl::string_view name) {
  for (TestKind test : kTests) {
    if (name == Name(test)) return test;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("-t ", name, ": must be am_lat, am_bw, tree or logits"));
}

absl::StatusOr<transport::MemoryKind> ParseMemory(absl::string_view name) {
  for (const auto kind : {transport::MemoryKind::kHost, transport::MemoryKind::kCuda}) {
    if (name == transport::Name(kind)) return kind;
  }
  return absl::InvalidArgumentError(absl::StrCat("-m ", name, ": must be host or cuda"));
}

absl::Status CheckRange(absl::string_view flag, int64_t given, int64_t low, int64_t high) {
  if (given >= low && given <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " ", given, ": must be from ", low, " to ", high));
}

absl::Status Check(const Plan& plan) {
  for (const absl::Status& status : {CheckRange("-s", plan.bytes, 1, kMaxBytes),
                                     CheckRange("-n", plan.iterations, 1, kMaxIterations),
                                     CheckRange("-w", plan.warm_up, 0, kMaxIterations),
                                     CheckRange("-O", plan.window, 1, kMaxWindow)}) {
    if (!status.ok()) return status;
  }
  return CheckPool(plan);
}

std::string Encode(const Plan& plan) {
  return nlohmann::json{{"test", Name(plan.test)},       {"bytes", plan.bytes},
                        {"iterations", plan.iterations}, {"warm_up", plan.warm_up},
                        {"window", plan.window},         {"memory", Name(plan.memory)}}
      .dump();
}

absl::StatusOr<Plan> Decode(absl::string_view text) {
  const auto malformed = absl::InvalidArgumentError("it cannot be read");
  if (text.size() > kMaxPlanBytes) return malformed;
  const nlohmann::json json = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (!json.is_object()) return malformed;
  // No number of a plan is larger, so that none is cut short below.
  for (const char* name : {"bytes", "iterations", "warm_up", "window"}) {
    if (!json.contains(name) || !json[name].is_number_unsigned()) return malformed;
    if (json[name].get<uint64_t>() > kMaxBytes) return malformed;
  }
  for (const char* name : {"test", "memory"}) {
    if (!json.contains(name) || !json[name].is_string()) return malformed;
  }
  const auto test = ParseTest(json["test"].get<std::string>());
  if (!test.ok()) return test.status();
  const auto memory = ParseMemory(json["memory"].get<std::string>());
  if (!memory.ok()) return memory.status();
  Plan plan;
  plan.test = *test;
  plan.bytes = json["bytes"].get<uint32_t>();
  plan.iterations = json["iterations"].get<int64_t>();
  plan.warm_up = json["warm_up"].get<int64_t>();
  plan.window = json["window"].get<int32_t>();
  plan.memory = *memory;
  const absl::Status status = Check(plan);
  if (!status.ok()) return status;
  return plan;
}

int32_t SlotsFor(const Plan& plan) {
  // The window, and as many that are being read or await the acknowledgement of their sending; one
  // to receive what is compared, while another is sent from and a third is on its way.
  return plan.test == TestKind::kBandwidth ? std::max(2 * plan.window, 3) : 4;
}

}  // namespace specfabric::perftest
