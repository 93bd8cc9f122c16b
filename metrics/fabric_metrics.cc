#include "metrics/fabric_metrics.h"

#include <set>
#include <string>
#include <utility>

namespace specfabric::metrics {
namespace {

constexpr const char* kPeerBytes = "specfabric_fabric_peer_bytes_total";

}  // namespace

FabricMetrics::FabricMetrics(Registry& registry, std::function<FabricCounters()> read)
    : registry_(registry),
      releasing_(registry.AddGauge("specfabric_fabric_releasing_connections",
                                   "Closed connections whose buffers are still in use")),
      addresses_(
          registry.AddGauge("specfabric_fabric_addresses", "Addresses that are kept connected")),
      read_(std::move(read)) {
  using C = FabricCounters;
  const auto add = [&](const char* name, const char* help, Labels labels = {}) {
    return &registry.AddCounter(std::string("specfabric_fabric_") + name + "_total", help, labels);
  };
  const Labels sent = {{"direction", "sent"}}, received = {{"direction", "received"}};
  series_ = {
      {add("frames", "Frames sent and received", sent), &C::frames_sent},
      {add("frames", "Frames sent and received", received), &C::frames_received},
      {add("bytes", "Payload bytes sent and received", sent), &C::bytes_sent},
      {add("bytes", "Payload bytes sent and received", received), &C::bytes_received},
      {add("bytes_copied", "Payload bytes copied on their way"), &C::bytes_copied},
      {add("tensors", "Tensors sent and received, among the frames", sent), &C::tensors_sent},
      {add("tensors", "Tensors sent and received, among the frames", received),
       &C::tensors_received},
      {add("stale_tensors", "Tensors nobody waited for any more"), &C::stale_tensors},
      {add("refused_tensors", "Tensors without a slot to go to"), &C::refused_tensors},
      {add("late_tensors", "Tensors given up while under way"), &C::late_tensors},
      {add("connections_opened", "Connections opened"), &C::opened},
      {add("connections_closed", "Connections closed"), &C::closed},
      {add("connect_failures", "Connections that could not be opened"), &C::connect_failures},
      {add("refused_secrets", "Peers that did not prove the join secret"), &C::refused_secrets},
      {add("refused_wires", "Connections closed for not being RDMA"), &C::refused_wires},
      {add("silent_peers", "Connections closed for their peer's silence"), &C::silent_peers},
      {add("restarts", "Restarts of UCX after a peer that is gone blocked it"), &C::restarts},
      {add("refused_frames", "Frames refused for their size or form"), &C::refused_frames},
      {add("unattributed_frames", "Frames of no living connection"), &C::unattributed_frames},
      {add("send_errors", "Frames whose sending failed"), &C::send_errors},
      {add("back_pressure", "Frames refused because their peer is slow"), &C::back_pressure},
      {add("injected_faults", "Frames mistreated on purpose"), &C::faults},
      {add("wakeups", "Times the progress thread woke from sleep"), &C::wakeups},
      {add("handshakes", "Peers whose handshake was accepted"), &C::handshakes},
      {add("refused_hellos", "Peers whose handshake was refused"), &C::refused_hellos},
      {add("malformed_messages", "Messages that did not decode"), &C::malformed},
      {add("reconnects", "Connections opened again after a loss"), &C::reconnects},
      {add("lookup_failures", "Look-ups of a dns:/// name without an address"),
       &C::lookup_failures},
  };
  refresh_ = registry.AddRefresh([this] { Update(); });
}

void FabricMetrics::Update() {
  const FabricCounters now = read_();
  for (Series& series : series_) AdvanceTo(now.*series.total, &series.seen, series.counter);
  releasing_.Set(static_cast<double>(now.releasing));
  addresses_.Set(static_cast<double>(now.addresses));
  UpdateWires(now.peers);
  UpdatePeers(now.peers);
  for (const auto& [memory, bytes] : now.registered_bytes) {
    registry_
        .AddGauge("specfabric_fabric_registered_bytes",
                  "Memory registered with UCX that tensors are sent from and received into",
                  {{"memory", memory}})
        .Set(static_cast<double>(bytes));
  }
  for (const auto& [state, slots] : now.slots) {
    registry_
        .AddGauge("specfabric_fabric_slots",
                  "Slots of that memory by what they do; `quarantined`: the peer is gone while UCX "
                  "may still write to them",
                  {{"state", state}})
        .Set(static_cast<double>(slots));
  }
}

void FabricMetrics::UpdateWires(const std::vector<PeerCounters>& peers) {
  std::map<std::string, int64_t> wires;
  for (const PeerCounters& peer : peers) ++wires[peer.wire];
  for (const auto& [wire, gauge] : wires_) {
    if (!wires.contains(wire)) gauge->Set(0);
  }
  for (const auto& [wire, connections] : wires) {
    Gauge*& gauge = wires_[wire];
    if (gauge == nullptr) {
      gauge = &registry_.AddGauge("specfabric_fabric_connections",
                                  "Open connections by what carries them, such as `posix/memory`, "
                                  "`tcp/eth0`, `rc_mlx5/mlx5_0:1`",
                                  {{"wire", wire}});
    }
    gauge->Set(static_cast<double>(connections));
  }
}

void FabricMetrics::UpdatePeers(const std::vector<PeerCounters>& peers) {
  std::set<PeerKey> connected;
  std::set<uint64_t> connections;
  for (const PeerCounters& peer : peers) {
    const PeerKey key{peer.peer, peer.role, peer.wire};
    connected.insert(key);
    connections.insert(peer.connection);
    auto series = peers_.find(key);
    if (series == peers_.end()) series = peers_.emplace(key, AddPeer(key)).first;
    SeenBytes& seen = seen_[peer.connection];
    AdvanceTo(peer.bytes_sent, &seen.sent, series->second.sent);
    AdvanceTo(peer.bytes_received, &seen.received, series->second.received);
  }
  std::erase_if(seen_, [&](const auto& entry) { return !connections.contains(entry.first); });
  std::erase_if(peers_, [&](const auto& entry) {
    if (connected.contains(entry.first)) return false;
    registry_.Remove(kPeerBytes, entry.second.sent);
    registry_.Remove(kPeerBytes, entry.second.received);
    return true;
  });
}

FabricMetrics::PeerSeries FabricMetrics::AddPeer(const PeerKey& key) {
  const auto add = [&](const char* direction) {
    return &registry_.AddCounter(
        kPeerBytes,
        "Payload bytes of a peer's connections; series of a peer exist while it is connected",
        {{"peer", key[0]}, {"role", key[1]}, {"wire", key[2]}, {"direction", direction}});
  };
  return {.sent = add("sent"), .received = add("received")};
}

}  // namespace specfabric::metrics
