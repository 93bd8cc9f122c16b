#ifndef SPECFABRIC_LINK_FABRIC_COUNTERS_H_
#define SPECFABRIC_LINK_FABRIC_COUNTERS_H_

#include "link/link.h"
#include "metrics/fabric_metrics.h"

namespace specfabric::link {

// The counters of a link and its fabric, for the metrics.
metrics::FabricCounters ReadCounters(const Link& link);

}  // namespace specfabric::link

#endif  // SPECFABRIC_LINK_FABRIC_COUNTERS_H_
