#include "trace/recorder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/random.h"
#include "base/status.h"
#include "spdlog/spdlog.h"
#include "trace/chrome.h"
#include "trace/traceparent.h"

namespace specfabric::trace {
namespace {

constexpr size_t kQueue = 1 << 15;
constexpr base::Nanos kInterval = base::kSecond / 2;     // at which the queue is emptied
constexpr base::Nanos kSendTimeout = 2 * base::kSecond;  // of a request to the collector
constexpr base::Nanos kComplain = 60 * base::kSecond;

int64_t EpochNow() {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count() - base::Now();
}

// A random UUID (RFC 9562, version 4), as OpenTelemetry recommends for service.instance.id.
std::string NewInstanceId() {
  const uint64_t high = (base::RandomNonzero64() & ~uint64_t{0xf000}) | 0x4000;
  const uint64_t low = (base::RandomNonzero64() & ~(uint64_t{3} << 62)) | (uint64_t{2} << 62);
  return absl::StrFormat("%08x-%04x-%04x-%04x-%012x", high >> 32, (high >> 16) & 0xffff,
                         high & 0xffff, low >> 48, low & 0xffffffffffff);
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

}  // namespace

ProcessInfo ThisProcess(std::string role, std::string address, std::string version) {
  return {.role = std::move(role),
          .address = std::move(address),
          .version = std::move(version),
          .instance = NewInstanceId(),
          .host = HostName(),
          .pid = getpid(),
          .epoch = EpochNow()};
}

// Appends whole lines with one write call, so that processes can share a file.
class Recorder::File {
 public:
  static absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path) {
    // The process that creates the file writes the opening bracket.
    int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    const bool made = fd >= 0;
    if (!made && errno == EEXIST) fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0) {
      return absl::UnavailableError(absl::StrCat("trace file ", path, ": ", std::strerror(errno)));
    }
    auto file = std::unique_ptr<File>(new File(fd));
    if (made && !file->Append("[\n")) {
      return absl::UnavailableError(absl::StrCat("trace file ", path, " takes no bytes"));
    }
    return file;
  }
  ~File() { close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool Append(const std::string& lines) {
    return write(fd_, lines.data(), lines.size()) == static_cast<ssize_t>(lines.size());
  }

 private:
  explicit File(int fd) : fd_(fd) {}
  const int fd_;
};

absl::StatusOr<std::unique_ptr<Recorder>> Recorder::Start(const RecorderOptions& options,
                                                          ProcessInfo process) {
  auto recorder = std::unique_ptr<Recorder>(new Recorder(options, std::move(process)));
  if (!options.endpoint.empty()) {
    auto endpoint = ParseOtlpEndpoint(options.endpoint);
    if (!endpoint.ok()) return endpoint.status();
    recorder->endpoint_ = *std::move(endpoint);
  }
  if (!options.file.empty()) {
    auto file = File::Open(options.file);
    if (!file.ok()) return file.status();
    recorder->file_ = *std::move(file);
    recorder->file_->Append(ChromeHeader(recorder->process_));
  }
  recorder->thread_ = std::thread([r = recorder.get()] { r->Run(); });
  return recorder;
}

Recorder::Recorder(const RecorderOptions& options, ProcessInfo process)
    : sample_(options.sample), process_(std::move(process)), queue_(kQueue) {}

Recorder::~Recorder() {
  queue_.Close();
  if (thread_.joinable()) thread_.join();
}

void Recorder::Record(Span span) {
  const bool kept = queue_.Push(std::move(span));
  (kept ? recorded_ : dropped_).fetch_add(1, std::memory_order_relaxed);
}

base::TraceContext Recorder::Begin(std::string_view traceparent) const {
  if (const auto parent = ParseTraceparent(traceparent)) {
    return parent->sampled ? parent->context : base::TraceContext{};
  }
  constexpr double kAll = 18446744073709551616.0;  // 2^64
  const uint64_t low = base::RandomNonzero64();
  if (sample_ < 1 && static_cast<double>(base::RandomNonzero64()) >= sample_ * kAll) return {};
  return {base::RandomNonzero64(), low, 0};
}

RecorderStats Recorder::stats() const {
  return {.recorded = recorded_.load(), .dropped = dropped_.load(), .lost = lost_.load()};
}

void Recorder::Run() {
  for (bool over = false; !over;) {
    // Closing first makes sure that nothing is queued after the last flush.
    over = queue_.closed();
    std::vector<Span> spans = queue_.PopAll(over ? 0 : base::Now() + kInterval);
    if (spans.empty()) continue;
    process_.epoch = EpochNow();
    if (file_ != nullptr) Write(spans);
    if (endpoint_) Export(std::move(spans));
    // Waits, because writing spans in batches costs less than one by one.
    if (!over) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void Recorder::Write(const std::vector<Span>& spans) {
  std::string lines;
  for (const Span& span : spans) lines += ChromeLines(span, process_);
  if (!file_->Append(lines)) lost_ += spans.size();
}

void Recorder::Export(std::vector<Span> spans) {
  std::erase_if(spans, [](const Span& span) { return !span.parent.traced(); });
  if (spans.empty()) return;
  const absl::Status status = PostOtlp(*endpoint_, OtlpBody(spans, process_), kSendTimeout);
  if (status.ok()) return;
  lost_ += spans.size();
  const base::Nanos now = base::Now();
  if (complained_ != 0 && now - complained_ < kComplain) return;
  complained_ = now;
  spdlog::warn("trace: the collector {}:{} took nothing: {}", endpoint_->host, endpoint_->port,
               base::Message(status));
}

uint64_t NewSpanId() { return base::RandomNonzero64(); }

base::TraceContext Below(const base::TraceContext& parent, uint64_t id) {
  return {parent.trace_high, parent.trace_low, id};
}

}  // namespace specfabric::trace
