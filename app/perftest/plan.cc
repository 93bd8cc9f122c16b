#include "app/perftest/plan.h"

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace specfabric::perftest {
namespace {

constexpr Test kTests[] = {Test::kLatency, Test::kBandwidth, Test::kTree, Test::kLogits};
constexpr uint32_t kMaxBytes = 1u << 30;

}  // namespace

const char* Name(Test test) {
  switch (test) {
    case Test::kLatency:
      return "am_lat";
    case Test::kBandwidth:
      return "am_bw";
    case Test::kTree:
      return "tree";
    case Test::kLogits:
      return "logits";
  }
  return "";
}

absl::StatusOr<Test> ParseTest(absl::string_view name) {
  for (Test test : kTests) {
    if (name == Name(test)) return test;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("-t ", name, ": must be am_lat, am_bw, tree or logits"));
}

absl::Status Check(const Plan& plan) {
  const auto outside = [](const char* flag, int64_t given, int64_t low, int64_t high) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " ", given, ": must be from ", low, " to ", high));
  };
  if (plan.bytes < 1 || plan.bytes > kMaxBytes) return outside("-s", plan.bytes, 1, kMaxBytes);
  if (plan.iterations < 1 || plan.iterations > 1'000'000'000) {
    return outside("-n", plan.iterations, 1, 1'000'000'000);
  }
  if (plan.warm_up < 0 || plan.warm_up > 1'000'000'000) {
    return outside("-w", plan.warm_up, 0, 1'000'000'000);
  }
  if (plan.window < 1 || plan.window > kMaxWindow) {
    return outside("-O", plan.window, 1, kMaxWindow);
  }
  return absl::OkStatus();
}

std::string Encode(const Plan& plan) {
  return nlohmann::json{{"test", Name(plan.test)},       {"bytes", plan.bytes},
                        {"iterations", plan.iterations}, {"warm_up", plan.warm_up},
                        {"window", plan.window},         {"memory", Name(plan.memory)}}
      .dump();
}

absl::StatusOr<Plan> Decode(absl::string_view text) {
  const nlohmann::json json = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  const auto malformed = absl::InvalidArgumentError("the client's plan cannot be read");
  if (!json.is_object()) return malformed;
  for (const char* name : {"bytes", "iterations", "warm_up", "window"}) {
    if (!json.contains(name) || !json[name].is_number_unsigned()) return malformed;
  }
  for (const char* name : {"test", "memory"}) {
    if (!json.contains(name) || !json[name].is_string()) return malformed;
  }
  const auto test = ParseTest(json["test"].get<std::string>());
  if (!test.ok()) return test.status();
  Plan plan;
  plan.test = *test;
  plan.bytes = json["bytes"].get<uint32_t>();
  plan.iterations = json["iterations"].get<int64_t>();
  plan.warm_up = json["warm_up"].get<int64_t>();
  plan.window = json["window"].get<int32_t>();
  plan.memory =
      json["memory"] == "cuda" ? transport::MemoryKind::kCuda : transport::MemoryKind::kHost;
  const absl::Status status = Check(plan);
  if (!status.ok()) return status;
  return plan;
}

int32_t SlotsFor(const Plan& plan) {
  // The window, and as many that are being read or await the acknowledgement of their sending.
  return plan.test == Test::kBandwidth ? 2 * plan.window : 4;
}

}  // namespace specfabric::perftest
