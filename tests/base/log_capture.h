#ifndef SPECFABRIC_TESTS_BASE_LOG_CAPTURE_H_
#define SPECFABRIC_TESTS_BASE_LOG_CAPTURE_H_

#include <memory>
#include <sstream>
#include <string>

#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"

namespace specfabric::base {

// What is logged while it lives.
class LogCapture {
 public:
  LogCapture() : before_(spdlog::default_logger()) {
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("capture", sink));
  }
  ~LogCapture() { spdlog::set_default_logger(before_); }
  // Once nothing is logged any more.
  std::string text() const { return text_.str(); }
  int Count(const std::string& what) const {
    const std::string text = text_.str();
    int count = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
      ++count;
    }
    return count;
  }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::logger> before_;
};

}  // namespace specfabric::base

#endif  // SPECFABRIC_TESTS_BASE_LOG_CAPTURE_H_
