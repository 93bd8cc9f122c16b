#include "gateway/access_log.h"

#include <chrono>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "spdlog/async.h"
#include "spdlog/spdlog.h"

namespace specfabric::gateway {
namespace {

constexpr size_t kMaxLines = 8192;  // that wait to be written
constexpr size_t kMaxShown = 200;   // bytes of a method or path

// `text` without what could end a field or a line: as in a URL.
std::string Shown(const std::string& text) {
  std::string shown;
  for (const char c : text.substr(0, kMaxShown)) {
    if (absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '%' && c != '"') {
      shown += c;
    } else {
      absl::StrAppendFormat(&shown, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  if (text.size() > kMaxShown) shown += "...";
  return shown;
}

}  // namespace

AccessLog::AccessLog(const Tenants* tenants)
    : tenants_(*tenants), thread_(std::make_shared<spdlog::details::thread_pool>(kMaxLines, 1)) {
  const auto base = spdlog::default_logger();
  logger_ = std::make_shared<spdlog::async_logger>(base->name(), base->sinks().begin(),
                                                   base->sinks().end(), thread_,
                                                   spdlog::async_overflow_policy::overrun_oldest);
  logger_->set_level(spdlog::level::info);
}

AccessLog::~AccessLog() = default;

void AccessLog::Add(const HttpRequest& request, const HttpAnswered& answered) {
  const uint64_t tenant = tenants_.Of(ApiKeyOf(request.authorization, request.x_api_key), "").id;
  logger_->info("access method={} path={} status={} bytes={} ms={:.3f} request_id={} tenant={}",
                Shown(request.method), Shown(request.path), answered.status, answered.bytes,
                std::chrono::duration<double, std::milli>(answered.time).count(),
                request.request_id, tenant == 0 ? "none" : absl::StrFormat("%016x", tenant));
}

}  // namespace specfabric::gateway
