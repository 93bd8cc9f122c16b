#ifndef SPECFABRIC_LINK_LINK_H_
#define SPECFABRIC_LINK_LINK_H_

// Typed peers for all roles: sends and receives the schemas' messages over the transport's frames.
// The service hears of a connection only after both sides have exchanged and accepted a Hello.
// Keeps a list of addresses, and the records of names, connected, with back-off.
//
// Threads: callbacks run on the fabric's progress thread and must not block; services push into
// their own queues. None runs before Start is called, so the owner stores the link that Create
// returns, adds its pools, and then starts it. Callbacks run until the destructor has returned: one
// that uses the link must not reach it through a pointer that is reset meanwhile. Methods may be
// called from any thread. A timer thread of the link's own connects, reconnects, and closes peers
// whose Hello is late; where there are names whose records are peers, another thread looks them up
// (link/name_watch.h). The fabric closes silent peers (FabricOptions::silence_timeout).
//
// A loopback-only link (every address it is given is 127.0.0.0/8 or ::1; of names whose records are
// peers, only localhost is known to stay there) keeps UCX on the loopback device, unless
// options.fabric.net_devices says otherwise.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "link/name_watch.h"
#include "schemas/messages.h"
#include "transport/fabric.h"

namespace specfabric::link {

// How long a role that ends waits for its last messages to leave (Flush).
constexpr base::Nanos kLastMessagesTimeout = base::kSecond;

using transport::PeerId;

// What a service may receive after the handshake.
using Message =
    std::variant<schemas::Drain, schemas::DraftRequest, schemas::DraftReply, schemas::EndSession,
                 schemas::Submit, schemas::TokensBatch, schemas::Cancel, schemas::GroupPart,
                 schemas::GroupReady, schemas::Step, schemas::StepDone, schemas::Collective,
                 schemas::HiddenStates>;

struct LinkOptions {
  transport::FabricOptions fabric;
  schemas::Hello hello;                  // this process's; the incarnation is filled in if 0
  std::string listen;                    // "host:port", or empty not to listen
  transport::SharedListenSocket socket;  // one that listens there already, or null; moved from
  // To keep connected: "host:port", or "dns:///host:port" for every record of the name.
  std::vector<std::string> connect;
  base::Nanos lookup_interval = 5 * base::kSecond;  // of the dns:/// names
  Lookup lookup;                                    // unset: the system's resolver
  base::Nanos handshake_timeout = 2 * base::kSecond;
  base::Nanos min_backoff = 50 * base::kMillisecond;
  base::Nanos max_backoff = 5 * base::kSecond;
  // OK accepts the peer; otherwise why it is refused. The link has checked the version. Pure.
  std::function<absl::Status(const schemas::Hello&)> accept;
};

struct LinkHandler {
  std::function<void(PeerId, const schemas::Hello&, const std::string& address)> on_up;
  std::function<void(PeerId, Message)> on_message;
  // As the fabric's (transport/fabric.h), for peers that are up. A tensor and the message that it
  // belongs to may come in either order; its tag joins them.
  std::function<bool(PeerId, const transport::TensorFields&)> admit_tensor;
  std::function<void(PeerId, transport::Tensor&&)> on_tensor;
  std::function<void(PeerId, const transport::TensorFields&, const absl::Status&)> on_refused;
  // Once for each on_up.
  std::function<void(PeerId, const absl::Status&)> on_down;
};

// Counters since start. `malformed`: messages that did not decode or broke the protocol, each of
// which closed its sender's connection. `reconnects`: addresses that came up again.
// `lookup_failures`: lookups of a name that found no address. `addresses` is a current value: how
// many are kept connected.
struct LinkStats {
  uint64_t handshakes = 0, refused_hellos = 0, malformed = 0, reconnects = 0;
  uint64_t lookup_failures = 0, addresses = 0;
};

// An open connection: its peer, and the payload it has carried.
struct PeerStats {
  PeerId peer = 0;
  std::string address;
  schemas::Role role = schemas::Role::kGateway;
  std::string wire;  // as in Fabric::Transport: "posix/memory", "tcp/eth0"; empty: not known
  uint64_t bytes_sent = 0, bytes_received = 0;
};

class Link {
 public:
  // Starts the fabric and takes the listening address, but accepts no peer, connects to none and
  // calls no callback before Start. InvalidArgument, in one line: an address that is not one.
  // Otherwise as Fabric's Create, Listen.
  static absl::StatusOr<std::unique_ptr<Link>> Create(LinkOptions options, LinkHandler handler);
  // Once. Methods that need a peer are of no use before.
  absl::Status Start();
  ~Link();  // no callback runs after it

  template <typename M>
  absl::Status Send(PeerId peer, const M& message) {
    return SendEncoded(peer, schemas::kTypeOf<M>, schemas::Encode(message));
  }
  // Memory to send tensors from, or to receive them in: as the fabric's.
  absl::StatusOr<std::shared_ptr<transport::SlotPool>> AddPool(
      uint8_t id, const transport::SlotPoolOptions& options);
  absl::Status SendTensor(PeerId peer, schemas::TensorType type,
                          const transport::TensorFields& fields, transport::Lease lease,
                          uint32_t bytes);
  bool Flush(base::Nanos timeout);  // as the fabric's
  void Close(PeerId peer);          // reconnects after the back-off

  const std::string& listen_address() const;  // as bound
  uint64_t incarnation() const;
  LinkStats stats() const;
  transport::FabricStats fabric_stats() const;
  std::vector<PeerStats> peers() const;  // those that are up
  std::vector<transport::PoolStats> pools() const;

 private:
  class Impl;
  explicit Link(std::unique_ptr<Impl> impl);
  absl::Status SendEncoded(PeerId peer, schemas::MessageType type, std::vector<uint8_t> payload);
  std::unique_ptr<Impl> impl_;
};

}  // namespace specfabric::link

#endif  // SPECFABRIC_LINK_LINK_H_
