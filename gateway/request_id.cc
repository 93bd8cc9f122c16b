#include "gateway/request_id.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "base/random.h"

namespace specfabric::gateway {

std::string RequestIdOf(std::string_view given) {
  const bool usable = !given.empty() && given.size() <= kMaxRequestId &&
                      std::all_of(given.begin(), given.end(),
                                  [](unsigned char c) { return absl::ascii_isgraph(c); });
  if (usable) return std::string(given);
  // Random bits of this process and a count: cheaper than random bits each time.
  static const uint64_t process = base::RandomNonzero64();
  static std::atomic<uint64_t> requests = 0;
  return absl::StrFormat("req-%016x%016x", process, ++requests);
}

}  // namespace specfabric::gateway
