#ifndef SPECFABRIC_TRACE_CHROME_H_
#define SPECFABRIC_TRACE_CHROME_H_

// Spans as events of the Trace Event Format, which Perfetto and chrome://tracing open: one JSON
// object a line, each followed by a comma, after a line with "[". The closing bracket may be
// missing and files of several processes may be joined line by line.

#include <string>

#include "trace/span.h"

namespace specfabric::trace {

// The line that names the process.
std::string ChromeHeader(const ProcessInfo& process);
// A traced span as a pair of asynchronous events that are grouped by their trace; another one as a
// complete event of the process' own row, where spans nest by time.
std::string ChromeLines(const Span& span, const ProcessInfo& process);

}  // namespace specfabric::trace

#endif  // SPECFABRIC_TRACE_CHROME_H_
