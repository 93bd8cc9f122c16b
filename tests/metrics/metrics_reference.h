#ifndef SPECFABRIC_TESTS_METRICS_METRICS_REFERENCE_H_
#define SPECFABRIC_TESTS_METRICS_METRICS_REFERENCE_H_

// docs/metrics.md, from the metrics themselves: a table a role, with each family's name, its labels
// and its help text, which say what a reader has to know.

#include <string>

namespace specfabric::metrics {

std::string MetricsReference();

}  // namespace specfabric::metrics

#endif  // SPECFABRIC_TESTS_METRICS_METRICS_REFERENCE_H_
