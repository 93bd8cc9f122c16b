#include "trace/chrome.h"

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "nlohmann/json.hpp"
#include "trace/traceparent.h"

namespace specfabric::trace {
namespace {

using Json = nlohmann::ordered_json;

std::string Line(const Json& event) {
  return event.dump(-1, ' ', false, Json::error_handler_t::replace) + ",\n";
}

// The process id by which the viewer groups events. Derived from the instance, because real process
// ids repeat when files of several machines are concatenated.
int64_t ViewerPid(const ProcessInfo& process) {
  constexpr uint32_t kPositive = 0x7fffffff;
  return base::Fnv1a(process.instance) & kPositive;
}

double Microseconds(base::Nanos time, const ProcessInfo& process) {
  return static_cast<double>(process.epoch + time) / 1e3;
}

Json Arguments(const Span& span) {
  Json arguments = Json::object();
  if (span.parent.traced()) {
    arguments["trace_id"] = TraceIdText(span.parent);
    arguments["span_id"] = SpanIdText(span.id);
    arguments["parent_span_id"] = SpanIdText(span.parent.span);
  }
  for (const Attribute& attribute : span.attributes) {
    std::visit([&](const auto& value) { arguments[attribute.key] = value; }, attribute.value);
  }
  return arguments;
}

}  // namespace

std::string ChromeHeader(const ProcessInfo& process) {
  return Line({{"ph", "M"},
               {"name", "process_name"},
               {"pid", ViewerPid(process)},
               {"args",
                {{"name", absl::StrCat(process.role, " ", process.address, " (", process.host,
                                       ", pid ", process.pid, ")")}}}});
}

std::string ChromeLines(const Span& span, const ProcessInfo& process) {
  const double begin = Microseconds(span.begin, process), end = Microseconds(span.end, process);
  Json event = {
      {"ph", "X"}, {"name", span.name}, {"cat", process.role}, {"pid", ViewerPid(process)},
      {"tid", 0},  {"ts", begin}};
  if (!span.parent.traced()) {
    event["dur"] = end - begin;
    event["args"] = Arguments(span);
    return Line(event);
  }
  event["ph"] = "b";
  event["id"] = TraceIdText(span.parent);
  Json last = event;
  last["ph"] = "e";
  last["ts"] = end;
  event["args"] = Arguments(span);
  return Line(event) + Line(last);
}

}  // namespace specfabric::trace
