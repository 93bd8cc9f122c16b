#ifndef SPECFABRIC_TRACE_OTLP_H_
#define SPECFABRIC_TRACE_OTLP_H_

// Exports traces to an OpenTelemetry collector: OTLP/HTTP with JSON bodies (opentelemetry-proto,
// ExportTraceServiceRequest), without compression or TLS.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "trace/span.h"

namespace specfabric::trace {

struct OtlpEndpoint {
  std::string host, port, path;
};

// "http://host:port" or "http://host:port/path"; the path is /v1/traces if none is given.
// InvalidArgument, in one line: another form.
absl::StatusOr<OtlpEndpoint> ParseOtlpEndpoint(const std::string& url);

// The request body. Leaves out spans that belong to no trace.
std::string OtlpBody(const std::vector<Span>& spans, const ProcessInfo& process);

// Unavailable: the collector was not reached or did not answer in time. FailedPrecondition: it
// answered with a status other than 200.
absl::Status PostOtlp(const OtlpEndpoint& endpoint, std::string body, base::Nanos timeout);

}  // namespace specfabric::trace

#endif  // SPECFABRIC_TRACE_OTLP_H_
