#include "metrics/fabric_metrics.h"

#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace specfabric::metrics {
namespace {

constexpr const char* kPeerBytes = "specfabric_fabric_peer_bytes_total";

using C = FabricCounters;

// A counter of the fabric, with its direction if it has one.
struct Total {
  const char* name;
  const char* help;
  const char* direction;
  uint64_t C::*value;
};
constexpr Total kTotals[] = {
    {"frames", "Frames sent and received", "sent", &C::frames_sent},
    {"frames", "Frames sent and received", "received", &C::frames_received},
    {"bytes", "Payload bytes sent and received", "sent", &C::bytes_sent},
    {"bytes", "Payload bytes sent and received", "received", &C::bytes_received},
    {"bytes_copied", "Payload bytes that the transport copied", nullptr, &C::bytes_copied},
    {"tensors", "Tensors sent and received, among the frames", "sent", &C::tensors_sent},
    {"tensors", "Tensors sent and received, among the frames", "received", &C::tensors_received},
    {"stale_tensors", "Tensors dropped because their round had ended", nullptr, &C::stale_tensors},
    {"refused_tensors", "Tensors without a slot to go to", nullptr, &C::refused_tensors},
    {"late_tensors", "Tensors abandoned during their transfer", nullptr, &C::late_tensors},
    {"connections_opened", "Connections opened", nullptr, &C::opened},
    {"connections_closed", "Connections closed", nullptr, &C::closed},
    {"connect_failures", "Connections that could not be opened", nullptr, &C::connect_failures},
    {"refused_secrets", "Peers that did not prove the join secret", nullptr, &C::refused_secrets},
    {"non_rdma_connections", "Connections closed because they are not RDMA", nullptr,
     &C::non_rdma_connections},
    {"silent_peers", "Connections closed because the peer sent nothing", nullptr, &C::silent_peers},
    {"restarts", "Restarts of UCX after a lost peer had blocked it", nullptr, &C::restarts},
    {"refused_frames", "Frames refused because of their size or format", nullptr,
     &C::refused_frames},
    {"unattributed_frames", "Frames that belong to no open connection", nullptr,
     &C::unattributed_frames},
    {"send_errors", "Frames that could not be sent", nullptr, &C::send_errors},
    {"back_pressure", "Frames refused because their peer is slow", nullptr, &C::back_pressure},
    {"injected_faults", "Frames that fault injection changed", nullptr, &C::faults},
    {"wakeups", "Times the progress thread woke from sleep", nullptr, &C::wakeups},
    {"handshakes", "Peers whose handshake was accepted", nullptr, &C::handshakes},
    {"refused_hellos", "Peers whose handshake was refused", nullptr, &C::refused_hellos},
    {"malformed_messages", "Messages that did not decode", nullptr, &C::malformed},
    {"reconnects", "Connections opened again after a loss", nullptr, &C::reconnects},
    {"lookup_failures", "DNS queries of a dns:/// name that returned no address", nullptr,
     &C::lookup_failures},
};

}  // namespace

void Add(const FabricCounters& more, FabricCounters* sum) {
  for (const Total& total : kTotals) sum->*total.value += more.*total.value;
  sum->releasing += more.releasing;
  sum->addresses += more.addresses;
  sum->peers.insert(sum->peers.end(), more.peers.begin(), more.peers.end());
  for (const auto& [kind, bytes] : more.registered_bytes) sum->registered_bytes[kind] += bytes;
  for (const auto& [state, slots] : more.slots) sum->slots[state] += slots;
}

FabricMetrics::FabricMetrics(Registry& registry, std::function<FabricCounters()> read)
    : registry_(registry),
      releasing_(registry.AddGauge("specfabric_fabric_releasing_connections",
                                   "Closed connections whose buffers are still in use")),
      addresses_(
          registry.AddGauge("specfabric_fabric_addresses", "Addresses that are kept connected")),
      read_(std::move(read)) {
  for (const Total& total : kTotals) {
    const Labels labels =
        total.direction == nullptr ? Labels{} : Labels{{"direction", total.direction}};
    series_.push_back(
        {&registry.AddCounter(absl::StrCat("specfabric_fabric_", total.name, "_total"), total.help,
                              labels),
         total.value});
  }
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
                  "Slots of memory registered for tensors, by state; `quarantined`: the peer is "
                  "gone, but UCX may still write to them",
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
      gauge =
          &registry_.AddGauge("specfabric_fabric_connections",
                              "Open connections by transport and device, such as `posix/memory`, "
                              "`tcp/eth0`, `rc_mlx5/mlx5_0:1`",
                              {{"wire", wire}});
    }
    gauge->Set(static_cast<double>(connections));
  }
}

void FabricMetrics::UpdatePeers(const std::vector<PeerCounters>& peers) {
  std::set<PeerKey> connected;
  std::set<Connection> connections;
  for (const PeerCounters& peer : peers) {
    const PeerKey key{peer.peer, peer.role, peer.wire};
    connected.insert(key);
    connections.insert({peer.connection, peer.peer});
    auto series = peers_.find(key);
    if (series == peers_.end()) series = peers_.emplace(key, AddPeer(key)).first;
    SeenBytes& seen = seen_[{peer.connection, peer.peer}];
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
