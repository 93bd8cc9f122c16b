#ifndef SPECFABRIC_TRACE_TRACEPARENT_H_
#define SPECFABRIC_TRACE_TRACEPARENT_H_

// The header `traceparent` of W3C Trace Context, level 1: 00-<trace id>-<span id>-<flags>.

#include <optional>
#include <string>
#include <string_view>

#include "base/trace_context.h"

namespace specfabric::trace {

struct Traceparent {
  base::TraceContext context;
  bool sampled = false;  // the caller records this trace
};

// Nothing if the header is malformed or has version ff, and so has to be ignored. Of a later
// version the known fields are read.
std::optional<Traceparent> ParseTraceparent(std::string_view header);
std::string FormatTraceparent(const Traceparent& parent);

// 32 and 16 hexadecimal digits.
std::string TraceIdText(const base::TraceContext& context);
std::string SpanIdText(uint64_t span);

}  // namespace specfabric::trace

#endif  // SPECFABRIC_TRACE_TRACEPARENT_H_
