#include "metrics/fabric_metrics.h"

#include <string>
#include <utility>

namespace specfabric::metrics {

FabricMetrics::FabricMetrics(Registry& registry, std::function<FabricCounters()> read)
    : read_(std::move(read)) {
  using C = FabricCounters;
  const auto add = [&](const char* name, const char* help, Labels labels = {}) {
    return &registry.AddCounter(std::string("specfabric_fabric_") + name + "_total", help, labels);
  };
  const Labels sent = {{"direction", "sent"}}, received = {{"direction", "received"}};
  series_ = {{
      {add("frames", "Frames", sent), &C::frames_sent},
      {add("frames", "Frames", received), &C::frames_received},
      {add("bytes", "Payload bytes", sent), &C::bytes_sent},
      {add("bytes", "Payload bytes", received), &C::bytes_received},
      {add("connections_opened", "Connections opened"), &C::opened},
      {add("connections_closed", "Connections closed"), &C::closed},
      {add("connect_failures", "Connections that could not be opened"), &C::connect_failures},
      {add("refused_frames", "Frames refused for their size or form"), &C::refused_frames},
      {add("send_errors", "Frames whose sending failed"), &C::send_errors},
      {add("wakeups", "Times the progress thread woke from sleep"), &C::wakeups},
      {add("handshakes", "Peers whose handshake was accepted"), &C::handshakes},
      {add("refused_hellos", "Peers whose handshake was refused"), &C::refused_hellos},
      {add("malformed_messages", "Messages that did not decode"), &C::malformed},
      {add("reconnects", "Connections opened again after a loss"), &C::reconnects},
  }};
  refresh_ = registry.AddRefresh([this] { Update(); });
}

void FabricMetrics::Update() {
  const FabricCounters now = read_();
  for (Series& series : series_) {
    const uint64_t total = now.*series.total;
    if (total > series.seen) series.counter->Increment(static_cast<double>(total - series.seen));
    series.seen = total;
  }
}

}  // namespace specfabric::metrics
