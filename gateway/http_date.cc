#include "gateway/http_date.h"

#include <array>

#include "absl/strings/str_format.h"

namespace specfabric::gateway {

std::string HttpDate(std::time_t time) {
  // Not strftime: its names follow the locale.
  static constexpr std::array kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr std::array kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm parts = {};
  gmtime_r(&time, &parts);
  return absl::StrFormat("%s, %02d %s %04d %02d:%02d:%02d GMT", kDays[parts.tm_wday], parts.tm_mday,
                         kMonths[parts.tm_mon], parts.tm_year + 1900, parts.tm_hour, parts.tm_min,
                         parts.tm_sec);
}

const std::string& DateHeader() {
  thread_local std::time_t second = -1;
  thread_local std::string text;
  const std::time_t now = std::time(nullptr);
  if (now != second) {
    second = now;
    text = HttpDate(now);
  }
  return text;
}

}  // namespace specfabric::gateway
