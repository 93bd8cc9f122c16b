#ifndef SPECFABRIC_TRACE_RECORDER_H_
#define SPECFABRIC_TRACE_RECORDER_H_

// Takes spans from any thread and writes them to a file, a collector, or both, on its own thread.
// Recording a span never blocks: when the queue is full, the span is dropped and counted.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/queue.h"
#include "trace/otlp.h"
#include "trace/span.h"

namespace specfabric::trace {

// Information about this process, with the present `epoch`.
ProcessInfo ThisProcess(std::string role, std::string address, std::string version);

struct RecorderOptions {
  std::string file = {};      // to append to, in Trace Event Format (chrome.h); empty: none
  std::string endpoint = {};  // of an OTLP/HTTP collector; empty: none
  // Share of requests to trace among those whose client has not decided.
  double sample = 1.0;
  bool enabled() const { return !file.empty() || !endpoint.empty(); }
};

struct RecorderStats {
  uint64_t recorded = 0;
  uint64_t dropped = 0;  // because the queue was full
  uint64_t lost = 0;     // because the file or the collector failed
};

class Recorder {
 public:
  // InvalidArgument: the endpoint is malformed. Unavailable: the file cannot be written.
  static absl::StatusOr<std::unique_ptr<Recorder>> Start(const RecorderOptions& options,
                                                         ProcessInfo process);
  ~Recorder();  // writes the spans that are queued

  void Record(Span span);
  // The context of a request that begins here: the client's if it decides, or else, for the share
  // `sample` of requests, a new one. `traceparent`: the header, or empty.
  base::TraceContext Begin(std::string_view traceparent) const;
  RecorderStats stats() const;

 private:
  class File;
  Recorder(const RecorderOptions& options, ProcessInfo process);
  void Run();
  void Write(const std::vector<Span>& spans);
  void Export(std::vector<Span> spans);

  const double sample_;
  ProcessInfo process_;  // used by Run's thread, which updates its epoch
  std::optional<OtlpEndpoint> endpoint_;
  std::unique_ptr<File> file_;
  base::BoundedQueue<Span> queue_;
  std::atomic<uint64_t> recorded_{0}, dropped_{0}, lost_{0};
  base::Nanos complained_ = 0;
  std::thread thread_;
};

// The id of a new span.
uint64_t NewSpanId();
// The context for children of span `id`, in the trace of `parent`.
base::TraceContext Below(const base::TraceContext& parent, uint64_t id);

}  // namespace specfabric::trace

#endif  // SPECFABRIC_TRACE_RECORDER_H_
