#ifndef SPECFABRIC_TESTS_BASE_LOG_CAPTURE_H_
#define SPECFABRIC_TESTS_BASE_LOG_CAPTURE_H_

#include <memory>
#include <mutex>
#include <string>

#include "spdlog/sinks/base_sink.h"
#include "spdlog/spdlog.h"

namespace specfabric::base {

// Keeps lines while a LogCapture lives. One for the process: the loggers' sinks may not be changed
// once threads log, so it is there from before main().
class CaptureSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void Keep(bool keep) {
    const std::lock_guard lock(mutex_);
    keep_ = keep;
    text_.clear();
  }
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (!keep_) return;
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    text_.append(line.data(), line.size());
  }
  void flush_() override {}

  bool keep_ = false;
  std::string text_;
};

inline const std::shared_ptr<CaptureSink> capture_sink = [] {
  auto sink = std::make_shared<CaptureSink>();
  spdlog::default_logger()->sinks().push_back(sink);
  return sink;
}();

// What is logged while it lives; one at a time.
class LogCapture {
 public:
  LogCapture() { capture_sink->Keep(true); }
  ~LogCapture() { capture_sink->Keep(false); }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  std::string text() const { return capture_sink->text(); }
  int Count(const std::string& what) const {
    const std::string text = capture_sink->text();
    int count = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
      ++count;
    }
    return count;
  }
};

}  // namespace specfabric::base

#endif  // SPECFABRIC_TESTS_BASE_LOG_CAPTURE_H_
