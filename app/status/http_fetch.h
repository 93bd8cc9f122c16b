#ifndef SPECFABRIC_APP_STATUS_HTTP_FETCH_H_
#define SPECFABRIC_APP_STATUS_HTTP_FETCH_H_

// Gets pages from many HTTP servers at once.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"

namespace specfabric::app {

struct Page {
  std::string address;  // "host:port"
  std::string path;
};

// The bodies, in the order of the pages. Unavailable: not reached, cut off, too large (16 MiB) or
// not answered within `timeout` (of each); NotFound and FailedPrecondition: answered with 404 or
// another status than 200.
std::vector<absl::StatusOr<std::string>> FetchPages(const std::vector<Page>& pages,
                                                    base::Nanos timeout);

}  // namespace specfabric::app

#endif  // SPECFABRIC_APP_STATUS_HTTP_FETCH_H_
