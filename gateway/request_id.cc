#include "gateway/request_id.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "base/random.h"

namespace specfabric::gateway {

std::string RequestIdOf(std::string_view given) {
  const bool usable = !given.empty() && given.size() <= kMaxRequestId &&
                      std::all_of(given.begin(), given.end(),
                                  [](unsigned char c) { return absl::ascii_isgraph(c); });
  if (usable) return std::string(given);
  return absl::StrFormat("req-%016x%016x", base::RandomNonzero64(), base::RandomNonzero64());
}

}  // namespace specfabric::gateway
