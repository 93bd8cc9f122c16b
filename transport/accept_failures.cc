#include "transport/accept_failures.h"

#include <utility>

#include "spdlog/spdlog.h"

namespace specfabric::transport {
namespace {

// A failure is logged again after this long without one.
constexpr base::Nanos kQuiet = 10 * base::kSecond;

}  // namespace

void AcceptFailures::Report(std::string_view server, const std::string& address,
                            std::string_view why, base::Nanos now) {
  const std::optional<base::Nanos> before = std::exchange(last_, now);
  if (before && now - *before <= kQuiet) return;
  spdlog::warn("{}: cannot accept connections on {}: {}; trying again every {} ms", server, address,
               why, kPause / base::kMillisecond);
}

}  // namespace specfabric::transport
