#ifndef SPECFABRIC_TRACE_RECORDER_H_
#define SPECFABRIC_TRACE_RECORDER_H_

// Takes spans from any thread and brings them to a file, a collector, or both, on a thread of its
// own: who records never waits. What it cannot keep up with is dropped, and counted.

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

// Of this process; `epoch` as the clocks are now.
ProcessInfo ThisProcess(std::string role, std::string address, std::string version);

struct RecorderOptions {
  std::string file = {};      // Trace Event Format (chrome.h), appended to; empty: none
  std::string endpoint = {};  // of OTLP/HTTP; empty: none
  // Share of the requests to trace, among those whose client does not say.
  double sample = 1.0;
  bool enabled() const { return !file.empty() || !endpoint.empty(); }
};

struct RecorderStats {
  uint64_t recorded = 0;
  uint64_t dropped = 0;  // the queue was full
  uint64_t lost = 0;     // neither written nor taken by the collector
};

class Recorder {
 public:
  // InvalidArgument: the endpoint. Unavailable: the file cannot be written.
  static absl::StatusOr<std::unique_ptr<Recorder>> Start(const RecorderOptions& options,
                                                         ProcessInfo process);
  ~Recorder();  // what is queued is still written

  void Record(Span span);
  // The context of a request that begins here: the client's, or a new one for `sample` of them; not
  // traced otherwise. `traceparent`: the header, or empty.
  base::TraceContext Begin(std::string_view traceparent) const;
  RecorderStats stats() const;

 private:
  class File;
  Recorder(const RecorderOptions& options, ProcessInfo process);
  void Run();
  void Write(const std::vector<Span>& spans);
  void Export(std::vector<Span> spans);

  const double sample_;
  ProcessInfo process_;  // Run's thread; its epoch follows the clock
  std::optional<OtlpEndpoint> endpoint_;
  std::unique_ptr<File> file_;
  base::BoundedQueue<Span> queue_;
  std::atomic<uint64_t> recorded_{0}, dropped_{0}, lost_{0};
  base::Nanos complained_ = 0;
  std::thread thread_;
};

// A new span's id.
uint64_t NewSpanId();
// What belongs to span `id` of the trace of `parent`.
base::TraceContext Below(const base::TraceContext& parent, uint64_t id);

}  // namespace specfabric::trace

#endif  // SPECFABRIC_TRACE_RECORDER_H_
