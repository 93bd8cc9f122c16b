#include "link/link.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/random.h"
#include "base/status.h"
#include "link/address_book.h"
#include "link/dispatch.h"
#include "link/peer_address.h"
#include "spdlog/spdlog.h"
#include "transport/address.h"

namespace specfabric::link {
namespace {

using schemas::Hello;
using schemas::MessageType;
using schemas::TensorType;
using transport::Frame;
using transport::TensorFields;

// UCX promises no order between frames, so some may overtake their sender's Hello.
constexpr size_t kMaxEarlyFrames = 64;

// A process that connects only within its machine must not open ports to the network: UCX listens
// on every device it may use.
bool OnlyLoopback(const LinkOptions& options) {
  std::vector<std::string> addresses = options.connect;
  if (!options.listen.empty()) addresses.push_back(options.listen);
  for (const std::string& address : addresses) {
    const auto name = NameOf(address);
    // Another name's records may change to any address.
    if (name && absl::StartsWith(*name, "localhost:")) continue;
    if (name) return false;
    const auto resolved = transport::ResolveAddress(address);
    if (!resolved.ok() || !transport::IsLoopback(resolved->storage)) return false;
  }
  return !addresses.empty();
}

LinkOptions WithIncarnation(LinkOptions options) {
  if (options.hello.incarnation == 0) options.hello.incarnation = base::RandomNonzero64();
  return options;
}

}  // namespace

class Link::Impl {
 public:
  Impl(LinkOptions options, LinkHandler handler)
      : options_(WithIncarnation(std::move(options))),
        handler_(std::move(handler)),
        book_(options_.min_backoff, options_.max_backoff, options_.hello.incarnation) {
    if (options_.fabric.net_devices.empty() && OnlyLoopback(options_)) {
      options_.fabric.net_devices = "lo";
    }
    hello_ = schemas::Encode(options_.hello);
    const base::Nanos now = base::Now();
    for (const std::string& address : options_.connect) {
      if (auto name = NameOf(address)) {
        names_.push_back(*std::move(name));
      } else {
        book_.Add(address, now);
      }
    }
  }

  ~Impl() {
    watch_.reset();
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    timer_wake_.notify_all();
    if (timer_.joinable()) timer_.join();
  }

  absl::Status Create() {
    auto fabric = transport::Fabric::Create(options_.fabric, MakeHandler());
    if (!fabric.ok()) return fabric.status();
    fabric_ = *std::move(fabric);
    if (options_.listen.empty()) return absl::OkStatus();
    if (options_.socket != nullptr) {
      socket_ = std::move(*options_.socket);
    } else {
      auto socket = transport::ListenSocket::Open(options_.listen);
      if (!socket.ok()) return socket.status();
      socket_ = *std::move(socket);
    }
    listen_address_ = socket_.address();
    return absl::OkStatus();
  }

  absl::Status Start() {
    if (timer_.joinable()) return absl::FailedPreconditionError("the link is started already");
    if (!options_.listen.empty()) {
      const auto bound = fabric_->Listen(std::move(socket_));
      if (!bound.ok()) return bound.status();
      spdlog::info("link {} listening on {}", schemas::Name(options_.hello.role), listen_address_);
    }
    timer_ = std::thread([this] { RunTimer(); });
    if (!names_.empty()) {
      std::lock_guard lock(mutex_);  // stats() reads it
      watch_.emplace(names_, options_.lookup_interval,
                     options_.lookup ? options_.lookup : &transport::ResolveAll,
                     [this](const std::string& name, const std::vector<std::string>& addresses) {
                       OnRecords(name, addresses);
                     });
    }
    return absl::OkStatus();
  }

  absl::Status Send(PeerId peer, MessageType type, std::vector<uint8_t> payload) {
    return fabric_->Send(peer, static_cast<uint16_t>(type), std::move(payload));
  }

  absl::StatusOr<std::shared_ptr<transport::SlotPool>> AddPool(
      uint8_t id, const transport::SlotPoolOptions& options) {
    return fabric_->AddPool(id, options);
  }

  absl::Status SendTensor(PeerId peer, TensorType type, const TensorFields& fields,
                          transport::Lease lease, uint32_t bytes) {
    return fabric_->SendTensor(peer, static_cast<uint16_t>(type), fields, std::move(lease), bytes);
  }

  bool Flush(base::Nanos timeout) { return fabric_->Flush(timeout); }
  void Close(PeerId peer) { fabric_->Close(peer); }

  const std::string& listen_address() const { return listen_address_; }
  uint64_t incarnation() const { return options_.hello.incarnation; }
  LinkStats stats() const {
    std::lock_guard lock(mutex_);
    LinkStats stats = stats_;
    stats.addresses = book_.size();
    if (watch_) stats.lookup_failures = watch_->failures();
    return stats;
  }
  transport::FabricStats fabric_stats() const { return fabric_->stats(); }
  std::vector<PeerStats> peers() const {
    std::vector<PeerStats> stats;
    const std::vector<transport::ConnectionStats> open = fabric_->Connections();
    std::lock_guard lock(mutex_);
    for (const transport::ConnectionStats& one : open) {
      const auto entry = peers_.find(one.peer);
      if (entry == peers_.end() || !entry->second.up) continue;
      stats.push_back({.peer = one.peer,
                       .address = entry->second.address,
                       .role = entry->second.role,
                       .wire = one.wire,
                       .bytes_sent = one.bytes_sent,
                       .bytes_received = one.bytes_received});
    }
    return stats;
  }
  std::vector<transport::PoolStats> pools() const { return fabric_->Pools(); }

 private:
  struct Peer {
    std::string address;
    schemas::Role role = schemas::Role::kGateway;  // once it is up
    base::Nanos since = 0;                         // the start of the handshake, then of being up
    bool up = false;
    std::vector<Frame> early;
    absl::Status reason;  // why this process closes it; OK: it does not
  };

  transport::FabricHandler MakeHandler() {
    transport::FabricHandler handler;
    handler.on_open = [this](PeerId peer, const std::string& address, bool) {
      OnOpen(peer, address);
    };
    handler.on_frame = [this](PeerId peer, Frame frame) { OnFrame(peer, std::move(frame)); };
    handler.admit_tensor = [this](PeerId peer, const TensorFields& fields) {
      return IsUp(peer) && (!handler_.admit_tensor || handler_.admit_tensor(peer, fields));
    };
    handler.on_tensor = [this](PeerId peer, transport::Tensor&& tensor) {
      OnTensor(peer, std::move(tensor));
    };
    handler.on_refused = [this](PeerId peer, const TensorFields& fields,
                                const absl::Status& status) {
      if (handler_.on_refused && IsUp(peer)) handler_.on_refused(peer, fields, status);
    };
    handler.on_close = [this](PeerId peer, const absl::Status& status) { OnClose(peer, status); };
    return handler;
  }

  // The fabric's callbacks, on its progress thread. Services are called with the mutex free.

  void OnOpen(PeerId peer, const std::string& address) {
    {
      std::lock_guard lock(mutex_);
      Peer& state = peers_[peer];
      state.address = address;
      state.since = base::Now();
    }
    timer_wake_.notify_all();
    const absl::Status sent = Send(peer, MessageType::kHello, hello_);
    if (!sent.ok()) CloseFor(peer, sent);
  }

  void OnFrame(PeerId peer, Frame frame) {
    const auto type = static_cast<MessageType>(frame.type);
    bool up;
    {
      std::lock_guard lock(mutex_);
      const auto entry = peers_.find(peer);
      if (entry == peers_.end() || !entry->second.reason.ok()) return;
      Peer& state = entry->second;
      up = state.up;
      if (!up && type != MessageType::kHello && state.early.size() < kMaxEarlyFrames) {
        state.early.push_back(std::move(frame));
        return;
      }
    }
    if (type == MessageType::kHello && !up) {
      OnHello(peer, frame);
    } else if (!up || type == MessageType::kHello) {
      Malformed(peer, absl::InvalidArgumentError(up ? "a second Hello" : "no Hello"));
    } else {
      OnMessage(peer, frame);
    }
  }

  void OnHello(PeerId peer, const Frame& frame) {
    const auto hello = schemas::Decode<Hello>(frame.payload);
    if (!hello.ok()) return Malformed(peer, hello.status());
    const absl::Status accepted = CheckHello(*hello);
    if (!accepted.ok()) return Refuse(peer, *hello, accepted);
    std::string address;
    std::vector<Frame> early;
    bool duplicate;
    {
      std::lock_guard lock(mutex_);
      const auto entry = peers_.find(peer);
      if (entry == peers_.end()) return;
      Peer& state = entry->second;
      const AddressBook::Arrival arrival = book_.Up(peer, hello->incarnation);
      duplicate = arrival == AddressBook::Arrival::kDuplicate;
      if (!duplicate) {
        state.up = true;
        state.role = hello->role;
        state.since = base::Now();
        address = state.address;
        early.swap(state.early);
        ++stats_.handshakes;
        if (arrival == AddressBook::Arrival::kAgain) ++stats_.reconnects;
      }
    }
    if (duplicate) {
      return CloseFor(peer, absl::AlreadyExistsError("it is connected by another address"));
    }
    timer_wake_.notify_all();
    spdlog::info("link peer={} up: {} '{}' incarnation={:016x} wire={}", address,
                 schemas::Name(hello->role), hello->model, hello->incarnation,
                 fabric_->Transport(peer));
    if (handler_.on_up) handler_.on_up(peer, *hello, address);
    for (Frame& waiting : early) OnFrame(peer, std::move(waiting));
  }

  absl::Status CheckHello(const Hello& hello) const {
    if (hello.protocol != schemas::kProtocolVersion) {
      return absl::FailedPreconditionError(absl::StrCat(
          "it speaks protocol ", hello.protocol, ", this process ", schemas::kProtocolVersion));
    }
    return options_.accept ? options_.accept(hello) : absl::OkStatus();
  }

  void OnMessage(PeerId peer, const Frame& frame) {
    auto message = DecodeMessage(frame);
    if (!message.ok()) return Malformed(peer, message.status());
    if (handler_.on_message) handler_.on_message(peer, *std::move(message));
  }

  bool IsUp(PeerId peer) const {
    std::lock_guard lock(mutex_);
    const auto entry = peers_.find(peer);
    return entry != peers_.end() && entry->second.up && entry->second.reason.ok();
  }

  // A peer is asked for tensors only after its Hello, so none can overtake the Hello.
  void OnTensor(PeerId peer, transport::Tensor&& tensor) {
    if (!IsUp(peer)) return Malformed(peer, absl::InvalidArgumentError("a tensor before Hello"));
    if (handler_.on_tensor) handler_.on_tensor(peer, std::move(tensor));
  }

  void OnClose(PeerId peer, const absl::Status& status) {
    std::optional<Peer> gone;
    absl::Status reason = status;
    std::string unreachable;
    {
      std::lock_guard lock(mutex_);
      const auto entry = peers_.find(peer);
      if (entry != peers_.end()) {
        gone = std::move(entry->second);
        if (!gone->reason.ok()) reason = gone->reason;
        peers_.erase(entry);
      }
      const base::Nanos now = base::Now();
      const bool stable = gone && gone->up && now - gone->since > options_.max_backoff;
      const auto loss = book_.Down(peer, reason.code(), gone.has_value(), stable, now);
      if (loss && loss->news && !stopping_) unreachable = loss->address;
    }
    timer_wake_.notify_all();
    if (!unreachable.empty()) WarnUnreachable(unreachable, reason);
    if (!gone) return;
    const std::string why = reason.ok() ? "closed by this process" : base::Message(reason);
    spdlog::info("link peer={} down: {}", gone->address, why);
    if (gone->up && handler_.on_down) handler_.on_down(peer, reason);
  }

  void Malformed(PeerId peer, const absl::Status& status) {
    {
      std::lock_guard lock(mutex_);
      ++stats_.malformed;
    }
    CloseFor(peer, status);
  }

  void Refuse(PeerId peer, const Hello& hello, const absl::Status& status) {
    std::string address;
    {
      std::lock_guard lock(mutex_);
      ++stats_.refused_hellos;
      const auto entry = peers_.find(peer);
      if (entry != peers_.end()) address = entry->second.address;
    }
    spdlog::warn("link peer={} refused: {} '{}': {}", address, schemas::Name(hello.role),
                 hello.model, base::Message(status));
    CloseFor(peer, status);
  }

  // Closes a peer; its on_down reports `reason`.
  void CloseFor(PeerId peer, const absl::Status& reason) {
    {
      std::lock_guard lock(mutex_);
      const auto entry = peers_.find(peer);
      if (entry == peers_.end() || !entry->second.reason.ok()) return;
      entry->second.reason = reason;
    }
    fabric_->Close(peer);
  }

  // The timer thread: connects, and closes peers whose Hello is late.

  void RunTimer() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      const base::Nanos now = base::Now();
      const std::vector<std::string> due = book_.Due(now);
      const std::vector<PeerId> late = LatePeers(now);
      lock.unlock();
      for (PeerId peer : late) CloseFor(peer, absl::DeadlineExceededError("no Hello in time"));
      for (const std::string& address : due) Connect(address);
      lock.lock();
      if (stopping_) return;
      const base::Nanos wait = NextDue() - base::Now();
      if (wait > 0) timer_wake_.wait_for(lock, std::chrono::nanoseconds(wait));
    }
  }

  std::vector<PeerId> LatePeers(base::Nanos now) const {
    std::vector<PeerId> late;
    for (const auto& [peer, state] : peers_) {
      if (AwaitsHello(state) && now >= state.since + options_.handshake_timeout) {
        late.push_back(peer);
      }
    }
    return late;
  }

  base::Nanos NextDue() const {
    base::Nanos due = book_.NextDue(base::Now() + base::kSecond);
    for (const auto& [peer, state] : peers_) {
      if (AwaitsHello(state)) due = std::min(due, state.since + options_.handshake_timeout);
    }
    return due;
  }

  static bool AwaitsHello(const Peer& state) { return !state.up && state.reason.ok(); }

  void Connect(const std::string& address) {
    // The name is looked up with the mutex free, because that may take long; the numeric address is
    // then connected to with the mutex held, so that callbacks find the peer in the book.
    const auto resolved = transport::ResolveAddress(address);
    std::lock_guard lock(mutex_);
    absl::Status status = resolved.status();
    if (resolved.ok()) {
      const auto peer = fabric_->Connect(transport::FormatAddress(resolved->storage));
      if (peer.ok()) {
        // Its record may be gone by now.
        if (!book_.Begin(address, *peer)) fabric_->Close(*peer);
        return;
      }
      status = peer.status();
    }
    if (book_.Failed(address, status.code(), base::Now())) WarnUnreachable(address, status);
  }

  static void WarnUnreachable(const std::string& address, const absl::Status& why) {
    spdlog::warn("link peer={} not reached, trying again: {}", address, base::Message(why));
  }

  // On NameWatch's thread.
  void OnRecords(const std::string& name, const std::vector<std::string>& addresses) {
    {
      std::lock_guard lock(mutex_);
      if (!book_.SetRecords(name, addresses, base::Now())) return;
    }
    timer_wake_.notify_all();
    spdlog::info("link name={} is now {}", name,
                 addresses.empty() ? "nobody" : absl::StrJoin(addresses, ", "));
  }

  LinkOptions options_;
  const LinkHandler handler_;
  std::vector<std::string> names_;  // whose records are peers
  std::vector<uint8_t> hello_;
  transport::ListenSocket socket_;  // from Create until Start
  std::string listen_address_;

  mutable std::mutex mutex_;  // guards all below but the thread
  std::condition_variable timer_wake_;
  bool stopping_ = false;
  AddressBook book_;
  absl::flat_hash_map<PeerId, Peer> peers_;
  LinkStats stats_;
  std::thread timer_;
  std::optional<NameWatch> watch_;

  // Last: callbacks run, and use everything above, until it is destroyed. Never reset, which would
  // give them a null pointer.
  std::unique_ptr<transport::Fabric> fabric_;
};

Link::Link(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Link::~Link() = default;

absl::StatusOr<std::unique_ptr<Link>> Link::Create(LinkOptions options, LinkHandler handler) {
  for (const std::string& address : options.connect) {
    if (absl::Status valid = CheckPeerAddress(address); !valid.ok()) return valid;
  }
  auto impl = std::make_unique<Impl>(std::move(options), std::move(handler));
  const absl::Status status = impl->Create();
  if (!status.ok()) return status;
  return std::unique_ptr<Link>(new Link(std::move(impl)));
}

absl::Status Link::Start() { return impl_->Start(); }

absl::Status Link::SendEncoded(PeerId peer, MessageType type, std::vector<uint8_t> payload) {
  return impl_->Send(peer, type, std::move(payload));
}

absl::StatusOr<std::shared_ptr<transport::SlotPool>> Link::AddPool(
    uint8_t id, const transport::SlotPoolOptions& options) {
  return impl_->AddPool(id, options);
}

absl::Status Link::SendTensor(PeerId peer, TensorType type, const TensorFields& fields,
                              transport::Lease lease, uint32_t bytes) {
  return impl_->SendTensor(peer, type, fields, std::move(lease), bytes);
}

bool Link::Flush(base::Nanos timeout) { return impl_->Flush(timeout); }
void Link::Close(PeerId peer) { impl_->Close(peer); }

const std::string& Link::listen_address() const { return impl_->listen_address(); }
uint64_t Link::incarnation() const { return impl_->incarnation(); }
LinkStats Link::stats() const { return impl_->stats(); }
transport::FabricStats Link::fabric_stats() const { return impl_->fabric_stats(); }
std::vector<PeerStats> Link::peers() const { return impl_->peers(); }
std::vector<transport::PoolStats> Link::pools() const { return impl_->pools(); }

}  // namespace specfabric::link
