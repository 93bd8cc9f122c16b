#ifndef SPECFABRIC_APP_STATUS_EXPOSITION_H_
#define SPECFABRIC_APP_STATUS_EXPOSITION_H_

// Reads what /metrics answers: Prometheus' text exposition format 0.0.4, without its timestamps.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace specfabric::app {

using MetricLabels = std::map<std::string, std::string>;

struct MetricSample {
  MetricLabels labels;
  double value = 0;
};

class Exposition {
 public:
  // InvalidArgument names the first line that is none.
  static absl::StatusOr<Exposition> Parse(std::string_view text);

  bool Has(const std::string& name) const { return samples_.contains(name); }
  // All series of a name, in the text's order.
  const std::vector<MetricSample>& Of(const std::string& name) const;
  // The sum over those that have these labels (and others); 0 without any.
  double Sum(const std::string& name, const MetricLabels& labels = {}) const;
  // A label of the first series of this name; empty without.
  std::string Label(const std::string& name, const std::string& label) const;

 private:
  std::map<std::string, std::vector<MetricSample>> samples_;
};

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_STATUS_EXPOSITION_H_
