#include "app/perftest/report.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace specfabric::perftest {
namespace {

struct Latencies {
  double min = 0, max = 0, typical = 0, deviation = 0, p99 = 0, p999 = 0;
};

struct Summary {
  double average = 0;  // us one way; of kBandwidth, from message to message
  double megabytes_per_second = 0, messages_per_second = 0;
  std::optional<Latencies> latencies;
};

// The least value that so large a part of all does not exceed.
double Percentile(const std::vector<double>& sorted, double part) {
  const double rank = std::ceil(part * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(std::max(rank, 1.)) - 1];
}

Latencies Summarise(std::vector<double> values, double average) {
  std::sort(values.begin(), values.end());
  double squares = 0;
  for (const double value : values) squares += (value - average) * (value - average);
  Latencies latencies;
  latencies.min = values.front();
  latencies.max = values.back();
  latencies.typical = Percentile(values, .5);
  latencies.deviation = std::sqrt(squares / static_cast<double>(values.size()));
  latencies.p99 = Percentile(values, .99);
  latencies.p999 = Percentile(values, .999);
  return latencies;
}

Summary Summarise(const Plan& plan, const Samples& samples) {
  Summary summary;
  const std::vector<double>& values = samples.one_way_us;
  if (values.empty()) {
    summary.average = samples.seconds * 1e6 / static_cast<double>(plan.iterations);
  } else {
    summary.average = std::accumulate(values.begin(), values.end(), 0.) / values.size();
    summary.latencies = Summarise(values, summary.average);
  }
  // Of a ping-pong, both directions count, as they do for ucx_perftest; of a tree, each way holds
  // another message, which payload_bytes sums up.
  const double ways = plan.test == TestKind::kLatency || plan.test == TestKind::kLogits ? 2 : 1;
  if (samples.seconds > 0) {
    summary.messages_per_second = ways * static_cast<double>(plan.iterations) / samples.seconds;
    summary.megabytes_per_second =
        summary.messages_per_second * static_cast<double>(samples.payload_bytes) / (1 << 20);
  }
  return summary;
}

nlohmann::ordered_json Fields(const Plan& plan, const Samples& samples) {
  const Summary summary = Summarise(plan, samples);
  const auto latency = [&](double Latencies::*field) -> nlohmann::ordered_json {
    if (!summary.latencies) return nullptr;
    return (*summary.latencies).*field;
  };
  return {{"test", Name(plan.test)},
          {"transport", samples.wire},
          {"payload_transport", samples.payload_wire},
          {"memory", Name(plan.memory)},
          {"bytes", samples.payload_bytes},
          {"iterations", plan.iterations},
          {"min_us", latency(&Latencies::min)},
          {"max_us", latency(&Latencies::max)},
          {"p50_us", latency(&Latencies::typical)},
          {"avg_us", summary.average},
          {"stdev_us", latency(&Latencies::deviation)},
          {"p99_us", latency(&Latencies::p99)},
          {"p999_us", latency(&Latencies::p999)},
          {"mb_per_s", summary.megabytes_per_second},
          {"messages_per_s", summary.messages_per_second},
          {"bytes_copied", samples.bytes_copied}};
}

std::string Table(const Plan& plan, const Samples& samples) {
  const Summary summary = Summarise(plan, samples);
  const std::string payload =
      samples.payload_wire.empty() ? "" : absl::StrCat(" (bytes: ", samples.payload_wire, ")");
  const std::string gpudirect =
      samples.gpudirect.empty() ? "" : absl::StrCat(" (GPUDirect: ", samples.gpudirect, ")");
  const std::string title = absl::StrFormat("# %s over %s%s, %s memory%s; ", Name(plan.test),
                                            samples.wire, payload, Name(plan.memory), gpudirect);
  if (!summary.latencies) {
    return absl::StrFormat(
        "%smicroseconds from message to message, MB = 2^20 bytes\n"
        "%12s %12s %12s %12s %14s\n%12d %12d %12.3f %12.2f %14.0f\n",
        title, "#bytes", "#iterations", "us/message", "MB/s", "messages/s", samples.payload_bytes,
        plan.iterations, summary.average, summary.megabytes_per_second,
        summary.messages_per_second);
  }
  const Latencies& latencies = *summary.latencies;
  return absl::StrFormat(
      "%smicroseconds one way (half a round trip)\n"
      "%12s %12s %10s %10s %10s %10s %10s %10s %10s\n"
      "%12d %12d %10.3f %10.3f %10.3f %10.3f %10.3f %10.3f %10.3f\n",
      title, "#bytes", "#iterations", "t_min", "t_max", "t_typical", "t_avg", "t_stdev", "99%",
      "99.9%", samples.payload_bytes, plan.iterations, latencies.min, latencies.max,
      latencies.typical, summary.average, latencies.deviation, latencies.p99, latencies.p999);
}

std::string Csv(const Plan& plan, const Samples& samples) {
  std::string names, values;
  const nlohmann::ordered_json fields = Fields(plan, samples);
  for (const auto& [name, value] : fields.items()) {
    absl::StrAppend(&names, name == "test" ? "" : ",", name);
    absl::StrAppend(&values, name == "test" ? "" : ",",
                    value.is_string() ? value.get<std::string>()
                    : value.is_null() ? ""
                                      : value.dump());
  }
  return absl::StrCat(names, "\n", values, "\n");
}

}  // namespace

std::string Report(const Plan& plan, const Samples& samples, Format format) {
  switch (format) {
    case Format::kTable:
      return Table(plan, samples);
    case Format::kCsv:
      return Csv(plan, samples);
    case Format::kJson:
      return Fields(plan, samples).dump() + "\n";
  }
  return "";
}

}  // namespace specfabric::perftest
