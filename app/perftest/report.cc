#include "app/perftest/report.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace specfabric::perftest {
namespace {

struct Summary {
  double min = 0, max = 0, typical = 0, average = 0, deviation = 0, p99 = 0, p999 = 0;
  double megabytes_per_second = 0, messages_per_second = 0;
};

double Percentile(const std::vector<double>& sorted, double part) {
  const size_t at = static_cast<size_t>(part * static_cast<double>(sorted.size()));
  return sorted[std::min(at, sorted.size() - 1)];
}

Summary Summarise(const Plan& plan, const Samples& samples) {
  Summary summary;
  const double count = static_cast<double>(plan.iterations);
  if (!samples.one_way_us.empty()) {
    std::vector<double> sorted = samples.one_way_us;
    std::sort(sorted.begin(), sorted.end());
    double sum = 0, squares = 0;
    for (double value : sorted) {
      sum += value;
      squares += value * value;
    }
    summary.min = sorted.front();
    summary.max = sorted.back();
    summary.typical = Percentile(sorted, .5);
    summary.p99 = Percentile(sorted, .99);
    summary.p999 = Percentile(sorted, .999);
    summary.average = sum / count;
    summary.deviation =
        std::sqrt(std::max(0., squares / count - summary.average * summary.average));
  } else {
    summary.average = summary.typical = samples.seconds * 1e6 / count;
  }
  // Of a ping-pong, both directions count, as they do for ucx_perftest; of a tree, each way holds
  // another message, which payload_bytes sums up.
  const double ways = plan.test == Test::kLatency || plan.test == Test::kLogits ? 2 : 1;
  if (samples.seconds > 0) {
    summary.messages_per_second = ways * count / samples.seconds;
    summary.megabytes_per_second =
        summary.messages_per_second * static_cast<double>(samples.payload_bytes) / (1 << 20);
  }
  return summary;
}

nlohmann::ordered_json Fields(const Plan& plan, const Samples& samples) {
  const Summary summary = Summarise(plan, samples);
  return {{"test", Name(plan.test)},
          {"transport", samples.wire},
          {"memory", Name(plan.memory)},
          {"bytes", samples.payload_bytes},
          {"iterations", plan.iterations},
          {"min_us", summary.min},
          {"max_us", summary.max},
          {"p50_us", summary.typical},
          {"avg_us", summary.average},
          {"stdev_us", summary.deviation},
          {"p99_us", summary.p99},
          {"p999_us", summary.p999},
          {"mb_per_s", summary.megabytes_per_second},
          {"messages_per_s", summary.messages_per_second},
          {"bytes_copied", samples.bytes_copied}};
}

std::string Table(const Plan& plan, const Samples& samples) {
  const Summary summary = Summarise(plan, samples);
  std::string text =
      absl::StrFormat("# %s over %s, %s memory; microseconds one way (half a round trip)\n",
                      Name(plan.test), samples.wire, Name(plan.memory));
  if (plan.test == Test::kBandwidth) {
    return text + absl::StrFormat("%12s %12s %12s %12s %14s\n%12d %12d %12.3f %12.2f %14.0f\n",
                                  "#bytes", "#iterations", "us/message", "MB/s", "messages/s",
                                  samples.payload_bytes, plan.iterations, summary.average,
                                  summary.megabytes_per_second, summary.messages_per_second);
  }
  return text + absl::StrFormat(
                    "%12s %12s %10s %10s %10s %10s %10s %10s %10s\n"
                    "%12d %12d %10.3f %10.3f %10.3f %10.3f %10.3f %10.3f %10.3f\n",
                    "#bytes", "#iterations", "t_min", "t_max", "t_typical", "t_avg", "t_stdev",
                    "99%", "99.9%", samples.payload_bytes, plan.iterations, summary.min,
                    summary.max, summary.typical, summary.average, summary.deviation, summary.p99,
                    summary.p999);
}

std::string Csv(const Plan& plan, const Samples& samples) {
  std::string names, values;
  const nlohmann::ordered_json fields = Fields(plan, samples);
  for (const auto& [name, value] : fields.items()) {
    absl::StrAppend(&names, names.empty() ? "" : ",", name);
    absl::StrAppend(&values, values.empty() ? "" : ",",
                    value.is_string() ? value.get<std::string>() : value.dump());
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
