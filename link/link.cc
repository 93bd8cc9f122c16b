#include "link/link.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "link/backoff.h"
#include "link/dispatch.h"
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

// A process that only ever meets others of its own machine must not open ports to the network:
// UCX listens on every device it may use.
bool OnlyLoopback(const LinkOptions& options) {
  std::vector<std::string> addresses = options.connect;
  if (!options.listen.empty()) addresses.push_back(options.listen);
  for (const std::string& address : addresses) {
    const auto resolved = transport::ResolveAddress(address);
    if (!resolved.ok() || !transport::IsLoopback(resolved->storage)) return false;
  }
  return !addresses.empty();
}

}  // namespace

class Link::Impl {
 public:
  Impl(LinkOptions options, LinkHandler handler)
      : options_(std::move(options)), handler_(std::move(handler)) {
    if (options_.hello.incarnation == 0) options_.hello.incarnation = base::RandomNonzero64();
    if (options_.fabric.net_devices.empty() && OnlyLoopback(options_)) {
      options_.fabric.net_devices = "lo";
    }
    hello_ = schemas::Encode(options_.hello);
    for (size_t i = 0; i < options_.connect.size(); ++i) {
      targets_.push_back({options_.connect[i], Backoff(options_.min_backoff, options_.max_backoff,
                                                       options_.hello.incarnation + i)});
    }
  }

  ~Impl() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    timer_wake_.notify_all();
    if (timer_.joinable()) timer_.join();
  }

  absl::Status Start() {
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
    auto fabric = transport::Fabric::Create(options_.fabric, std::move(handler));
    if (!fabric.ok()) return fabric.status();
    fabric_ = *std::move(fabric);
    if (!options_.listen.empty()) {
      auto bound = fabric_->Listen(options_.listen);
      if (!bound.ok()) return bound.status();
      listen_address_ = *std::move(bound);
      spdlog::info("link {} listening on {}", schemas::Name(options_.hello.role), listen_address_);
    }
    timer_ = std::thread([this] { RunTimer(); });
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

  void Close(PeerId peer) { fabric_->Close(peer); }

  const std::string& listen_address() const { return listen_address_; }
  uint64_t incarnation() const { return options_.hello.incarnation; }
  LinkStats stats() const {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  transport::FabricStats fabric_stats() const { return fabric_->stats(); }
  std::map<std::string, int64_t> wires() const { return fabric_->Wires(); }

 private:
  // An address to keep connected.
  struct Target {
    std::string address;
    Backoff backoff;
    PeerId peer = 0;               // 0: not connected nor trying
    base::Nanos next_attempt = 0;  // while peer == 0
    bool was_up = false;
    // Why the last attempt failed: further failures for the same reason are not logged again.
    absl::StatusCode failing = absl::StatusCode::kOk;
  };
  struct Peer {
    std::string address;
    base::Nanos since = 0;  // the start of the handshake, then of being up
    bool up = false;
    std::vector<Frame> early;
    absl::Status reason;  // why we closed it
  };

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
      OnMessage(peer, std::move(frame));
    }
  }

  void OnHello(PeerId peer, const Frame& frame) {
    const auto hello = schemas::Decode<Hello>(frame.payload);
    if (!hello.ok()) return Malformed(peer, hello.status());
    const absl::Status accepted = Judge(*hello);
    if (!accepted.ok()) return Refuse(peer, *hello, accepted);
    std::string address;
    std::vector<Frame> early;
    {
      std::lock_guard lock(mutex_);
      const auto entry = peers_.find(peer);
      if (entry == peers_.end()) return;
      Peer& state = entry->second;
      state.up = true;
      state.since = base::Now();
      address = state.address;
      early.swap(state.early);
      ++stats_.handshakes;
      if (Target* target = FindTarget(peer)) {
        if (target->was_up) ++stats_.reconnects;
        target->was_up = true;
        target->failing = absl::StatusCode::kOk;
      }
    }
    timer_wake_.notify_all();
    spdlog::info("link peer={} up: {} '{}' incarnation={:016x} wire={}", address,
                 schemas::Name(hello->role), hello->model, hello->incarnation,
                 fabric_->Transport(peer));
    if (handler_.on_up) handler_.on_up(peer, *hello, address);
    for (Frame& waiting : early) OnFrame(peer, std::move(waiting));
  }

  absl::Status Judge(const Hello& hello) const {
    if (hello.protocol != schemas::kProtocolVersion) {
      return absl::FailedPreconditionError(absl::StrCat(
          "it speaks protocol ", hello.protocol, ", this process ", schemas::kProtocolVersion));
    }
    return options_.accept ? options_.accept(hello) : absl::OkStatus();
  }

  void OnMessage(PeerId peer, Frame frame) {
    auto message = DecodeMessage(frame);
    if (!message.ok()) return Malformed(peer, message.status());
    if (handler_.on_message) handler_.on_message(peer, *std::move(message));
  }

  bool IsUp(PeerId peer) const {
    std::lock_guard lock(mutex_);
    const auto entry = peers_.find(peer);
    return entry != peers_.end() && entry->second.up && entry->second.reason.ok();
  }

  // Nobody is asked for tensors before its Hello has come, so none can overtake it.
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
      if (Target* target = FindTarget(peer)) {
        const base::Nanos now = base::Now();
        if (gone && gone->up && now - gone->since > options_.max_backoff) target->backoff.Reset();
        target->peer = 0;
        target->next_attempt = now + target->backoff.Next();
        if (!gone && target->failing != reason.code() && !stopping_) unreachable = target->address;
        if (!gone) target->failing = reason.code();
      }
    }
    timer_wake_.notify_all();
    if (!unreachable.empty()) {
      spdlog::warn("link peer={} not reached, trying again: {}", unreachable,
                   base::Message(reason));
    }
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

  // Closes a peer for a reason of ours, which its on_down will carry.
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
      std::vector<size_t> to_connect;
      for (size_t i = 0; i < targets_.size(); ++i) {
        if (targets_[i].peer == 0 && targets_[i].next_attempt <= now) to_connect.push_back(i);
      }
      const std::vector<PeerId> late = LatePeers(now);
      lock.unlock();
      for (PeerId peer : late) CloseFor(peer, absl::DeadlineExceededError("no Hello in time"));
      for (size_t i : to_connect) Connect(i);
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
    base::Nanos due = base::Now() + base::kSecond;
    for (const Target& target : targets_) {
      if (target.peer == 0) due = std::min(due, target.next_attempt);
    }
    for (const auto& [peer, state] : peers_) {
      if (AwaitsHello(state)) due = std::min(due, state.since + options_.handshake_timeout);
    }
    return due;
  }

  static bool AwaitsHello(const Peer& state) { return !state.up && state.reason.ok(); }

  void Connect(size_t index) {
    // The name is looked up with the mutex free, because that may take long; the numeric address is
    // then connected to with the mutex held, so that callbacks find the peer in its target.
    const auto resolved = transport::ResolveAddress(options_.connect[index]);
    std::lock_guard lock(mutex_);
    Target& target = targets_[index];
    absl::Status status = resolved.status();
    if (resolved.ok()) {
      const auto peer = fabric_->Connect(transport::FormatAddress(resolved->storage));
      if (peer.ok()) {
        target.peer = *peer;
        return;
      }
      status = peer.status();
    }
    target.next_attempt = base::Now() + target.backoff.Next();
    if (target.failing != status.code()) {
      spdlog::warn("link peer={} not reached, trying again: {}", target.address,
                   base::Message(status));
    }
    target.failing = status.code();
  }

  Target* FindTarget(PeerId peer) {
    for (Target& target : targets_) {
      if (target.peer == peer) return &target;
    }
    return nullptr;
  }

  LinkOptions options_;
  const LinkHandler handler_;
  std::vector<uint8_t> hello_;
  std::string listen_address_;

  mutable std::mutex mutex_;  // all below but the thread
  std::condition_variable timer_wake_;
  bool stopping_ = false;
  std::vector<Target> targets_;
  absl::flat_hash_map<PeerId, Peer> peers_;
  LinkStats stats_;
  std::thread timer_;

  // Last: callbacks run, and use everything above, until it is destroyed. (Never reset: they would
  // meet a null pointer.)
  std::unique_ptr<transport::Fabric> fabric_;
};

Link::Link(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Link::~Link() = default;

absl::StatusOr<std::unique_ptr<Link>> Link::Start(LinkOptions options, LinkHandler handler) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(handler));
  const absl::Status status = impl->Start();
  if (!status.ok()) return status;
  return std::unique_ptr<Link>(new Link(std::move(impl)));
}

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

void Link::Close(PeerId peer) { impl_->Close(peer); }

const std::string& Link::listen_address() const { return impl_->listen_address(); }
uint64_t Link::incarnation() const { return impl_->incarnation(); }
LinkStats Link::stats() const { return impl_->stats(); }
transport::FabricStats Link::fabric_stats() const { return impl_->fabric_stats(); }
std::map<std::string, int64_t> Link::wires() const { return impl_->wires(); }

}  // namespace specfabric::link
