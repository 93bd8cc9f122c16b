// What another process's /metrics answers. What is accepted has only series with names, and their
// sum by name is that of the values.

#include <cmath>
#include <string>
#include <string_view>

#include "app/status/exposition.h"
#include "base/check.h"
#include "tests/fuzz/target.h"

namespace specfabric {
namespace {

// The name of a line that is no comment, as far as it has one.
std::string_view NameOf(std::string_view line) {
  return line.substr(0, line.find_first_of("{ \t"));
}

void CheckAccepted(const app::Exposition& exposition, std::string_view text) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty() || line.front() == '#') continue;
    const std::string name(NameOf(line));
    SPECFABRIC_CHECK(!name.empty() && exposition.Has(name));
    double sum = 0;
    for (const app::MetricSample& sample : exposition.Of(name)) {
      sum += sample.value;
      for (const auto& [label, value] : sample.labels) SPECFABRIC_CHECK(!label.empty());
    }
    const double found = exposition.Sum(name);
    SPECFABRIC_CHECK(found == sum || (std::isnan(found) && std::isnan(sum)));
  }
}

}  // namespace

std::vector<fuzz::Bytes> fuzz::Seeds() {
  return {ToBytes("# HELP a b\n# TYPE a gauge\na 1\n"),
          ToBytes("h_bucket{le=\"0.5\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 0.75\nh_count 2\n"),
          ToBytes("a{x=\"1\",y=\"a \\\"b\\\" \\\\ \\n\",} -1.5e-3\nb{} NaN\nc -Inf")};
}

}  // namespace specfabric

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto exposition = specfabric::app::Exposition::Parse(text);
  if (exposition.ok()) specfabric::CheckAccepted(*exposition, text);
  return 0;
}
