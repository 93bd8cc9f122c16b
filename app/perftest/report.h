#ifndef SPECFABRIC_APP_PERFTEST_REPORT_H_
#define SPECFABRIC_APP_PERFTEST_REPORT_H_

#include <string>

#include "app/perftest/measure.h"
#include "app/perftest/plan.h"

namespace specfabric::perftest {

enum class Format { kTable, kCsv, kJson };

// One measurement as text, its lines ended. Latencies are one way, half a round trip, in
// microseconds; the columns are ucx_perftest's. kBandwidth has none: there JSON says null, CSV has
// nothing between commas, and the average is from message to message. Percentiles are by nearest
// rank, values that were measured.
std::string Report(const Plan& plan, const Samples& samples, Format format);

}  // namespace specfabric::perftest

#endif  // SPECFABRIC_APP_PERFTEST_REPORT_H_
