#ifndef SPECFABRIC_TRACE_SPAN_H_
#define SPECFABRIC_TRACE_SPAN_H_

// Something a process did from one time to another, and the process itself.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/trace_context.h"

namespace specfabric::trace {

struct Attribute {
  const char* key = "";  // a literal
  std::variant<int64_t, double, std::string> value;
};

struct Span {
  const char* name = "";  // a literal
  base::TraceContext parent =
      {};           // not traced: of this process alone, such as a step of many requests
  uint64_t id = 0;  // of a traced span; its children's parent.span
  base::Nanos begin = 0, end = 0;  // base::Now()
  std::vector<Attribute> attributes = {};
};

struct ProcessInfo {
  std::string role;     // "gateway", "target", "draft"
  std::string address;  // where it listens
  std::string version;
  // A random UUID of this run of the process. Process ids do not tell processes apart: in
  // containers they are alike.
  std::string instance;
  std::string host;
  int64_t pid = 0;
  // Nanoseconds since 1970 at base::Now() == 0: puts the spans of all machines on one axis, as well
  // as their clocks are synchronised.
  int64_t epoch = 0;
};

}  // namespace specfabric::trace

#endif  // SPECFABRIC_TRACE_SPAN_H_
