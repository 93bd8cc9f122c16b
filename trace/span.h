#ifndef SPECFABRIC_TRACE_SPAN_H_
#define SPECFABRIC_TRACE_SPAN_H_

// A span (an operation with its start and end), and the process that recorded it.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/trace_context.h"

namespace specfabric::trace {

struct Attribute {
  const char* key = "";  // a string literal
  std::variant<int64_t, double, std::string> value;
};

struct Span {
  const char* name = "";  // a string literal
  base::TraceContext parent =
      {};           // not traced: of this process alone, such as a step of many requests
  uint64_t id = 0;  // of a span of a trace: parent.span of its children
  base::Nanos begin = 0, end = 0;  // base::Now()
  std::vector<Attribute> attributes = {};
};

struct ProcessInfo {
  std::string role;     // "gateway", "target", "draft"
  std::string address;  // where it listens
  std::string version;
  // A random UUID of this run of the process: process ids are often the same in all containers.
  std::string instance;
  std::string host;
  int64_t pid = 0;
  // Unix time in nanoseconds at base::Now() == 0: converts spans of all machines to one time axis,
  // as exactly as their clocks are synchronised.
  int64_t epoch = 0;
};

}  // namespace specfabric::trace

#endif  // SPECFABRIC_TRACE_SPAN_H_
