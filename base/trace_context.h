#ifndef SPECFABRIC_BASE_TRACE_CONTEXT_H_
#define SPECFABRIC_BASE_TRACE_CONTEXT_H_

// What ties the spans of one request together across processes (W3C Trace Context): the trace's id,
// and the span that whatever is done next belongs to. All zero: nobody traces this request.

#include <cstdint>

namespace specfabric::base {

struct TraceContext {
  uint64_t trace_high = 0, trace_low = 0;
  uint64_t span = 0;
  bool traced() const { return (trace_high | trace_low) != 0; }
  bool operator==(const TraceContext&) const = default;
};

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_TRACE_CONTEXT_H_
