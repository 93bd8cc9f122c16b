#ifndef SPECFABRIC_TRACE_CHROME_H_
#define SPECFABRIC_TRACE_CHROME_H_

// Formats spans as events of the Trace Event Format, which Perfetto and chrome://tracing read: a
// line with "[", then one JSON object a line, each followed by a comma. The format allows the
// closing bracket to be missing, so files of several processes can be concatenated.

#include <string>

#include "trace/span.h"

namespace specfabric::trace {

// The line that names the process.
std::string ChromeHeader(const ProcessInfo& process);
// A span of a trace becomes a pair of asynchronous events, grouped by trace; any other span becomes
// a complete event in the row of its process, where spans nest by time.
std::string ChromeLines(const Span& span, const ProcessInfo& process);

}  // namespace specfabric::trace

#endif  // SPECFABRIC_TRACE_CHROME_H_
