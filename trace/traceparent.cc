#include "trace/traceparent.h"

#include <charconv>

#include "absl/strings/str_format.h"

namespace specfabric::trace {
namespace {

// Only lower-case hexadecimal digits, as the standard requires.
std::optional<uint64_t> Hex(std::string_view digits) {
  for (char c : digits) {
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return std::nullopt;
  }
  uint64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  return value;
}

}  // namespace

std::optional<Traceparent> ParseTraceparent(std::string_view header) {
  constexpr size_t kSize = 55;
  if (header.size() < kSize || header[2] != '-' || header[35] != '-' || header[52] != '-') {
    return std::nullopt;
  }
  const auto version = Hex(header.substr(0, 2)), flags = Hex(header.substr(53, 2));
  const auto high = Hex(header.substr(3, 16)), low = Hex(header.substr(19, 16));
  const auto span = Hex(header.substr(36, 16));
  if (!version || !flags || !high || !low || !span) return std::nullopt;
  if (*version == 0xff || (*version == 0 && header.size() != kSize)) return std::nullopt;
  if (header.size() > kSize && header[kSize] != '-') return std::nullopt;
  const Traceparent parent = {{*high, *low, *span}, (*flags & 1) != 0};
  if (!parent.context.traced() || *span == 0) return std::nullopt;
  return parent;
}

std::string FormatTraceparent(const Traceparent& parent) {
  return absl::StrFormat("00-%s-%s-%02x", TraceIdText(parent.context),
                         SpanIdText(parent.context.span), parent.sampled ? 1 : 0);
}

std::string TraceIdText(const base::TraceContext& context) {
  return absl::StrFormat("%016x%016x", context.trace_high, context.trace_low);
}

std::string SpanIdText(uint64_t span) { return absl::StrFormat("%016x", span); }

}  // namespace specfabric::trace
