#ifndef SPECFABRIC_TESTS_METRICS_METRICS_REFERENCE_H_
#define SPECFABRIC_TESTS_METRICS_METRICS_REFERENCE_H_

// Generates docs/metrics.md from the metrics: a table for each role, with the name, labels and help
// text of each family.

#include <string>

namespace specfabric::metrics {

std::string MetricsReference();

}  // namespace specfabric::metrics

#endif  // SPECFABRIC_TESTS_METRICS_METRICS_REFERENCE_H_
