#include "link/link.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "spdlog/spdlog.h"

namespace specfabric::link {

using schemas::MessageType;

namespace {

// Frames of a peer whose Hello has not come yet: order is not promised, so they wait for it.
constexpr size_t kMaxEarlyFrames = 256;
constexpr int kSilentPings = 5;

template <typename M>
absl::StatusOr<Message> DecodeAs(const transport::Frame& frame) {
  auto message = schemas::Decode<M>(frame.payload);
  if (!message.ok()) return message.status();
  return Message(*std::move(message));
}

absl::StatusOr<Message> DecodeMessage(const transport::Frame& frame) {
  switch (static_cast<MessageType>(frame.type)) {
    case MessageType::kDrain:
      return DecodeAs<schemas::Drain>(frame);
    case MessageType::kDraftRequest:
      return DecodeAs<schemas::DraftRequest>(frame);
    case MessageType::kDraftReply:
      return DecodeAs<schemas::DraftReply>(frame);
    case MessageType::kEndSession:
      return DecodeAs<schemas::EndSession>(frame);
    case MessageType::kSubmit:
      return DecodeAs<schemas::Submit>(frame);
    case MessageType::kTokens:
      return DecodeAs<schemas::Tokens>(frame);
    case MessageType::kCancel:
      return DecodeAs<schemas::Cancel>(frame);
    default:
      return absl::InvalidArgumentError(absl::StrCat("unknown message type ", frame.type));
  }
}

}  // namespace

class Link::Impl {
 public:
  Impl(LinkOptions options, LinkHandler handler)
      : options_(std::move(options)),
        handler_(std::move(handler)),
        random_(options_.hello.incarnation) {}
  ~Impl();
  absl::Status Start();

  absl::Status Send(PeerId peer, MessageType type, std::vector<uint8_t> payload) {
    return fabric_->Send(peer, static_cast<uint16_t>(type), std::move(payload));
  }
  void Close(PeerId peer) { fabric_->Close(peer); }
  const std::string& listen_address() const { return listen_address_; }
  uint64_t incarnation() const { return options_.hello.incarnation; }
  LinkStats stats() const {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  transport::FabricStats fabric_stats() const { return fabric_->stats(); }

 private:
  struct Peer {
    std::string address;
    bool up = false;
    bool inbound = false;
    base::Nanos opened = 0;
    base::Nanos heard = 0;
    base::Nanos pinged = 0;
    std::vector<transport::Frame> early;
  };
  // One address of LinkOptions::connect.
  struct Endpoint {
    std::string address;
    PeerId peer = 0;  // the connection made or being made; 0: none
    base::Nanos next_attempt = 0;
    base::Nanos backoff = 0;
    bool was_up = false;
  };

  // On the progress thread.
  void OnOpen(PeerId id, const std::string& address, bool inbound);
  void OnFrame(PeerId id, transport::Frame frame);
  void OnHello(PeerId id, const transport::Frame& frame);
  void OnClose(PeerId id, const absl::Status& why);
  void Deliver(PeerId id, const transport::Frame& frame);
  absl::Status Check(const schemas::Hello& hello) const;
  // Closes a peer that does not keep to the protocol.
  void Refuse(PeerId id, const std::string& address, const absl::Status& why,
              uint64_t LinkStats::*counter);

  // On the timer thread, which only looks at the clock and asks the fabric for things.
  void RunTimer();
  void TendEndpoints(base::Nanos now);
  void TendPeers(base::Nanos now);
  base::Nanos Interval() const;

  LinkOptions options_;
  const LinkHandler handler_;
  std::string listen_address_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // guarded by mutex_, as all that follows
  std::map<PeerId, Peer> peers_;
  std::vector<Endpoint> endpoints_;
  LinkStats stats_;
  std::minstd_rand random_;
  std::thread timer_;
  // Callbacks go on while the fabric is being destroyed, so the pointer they use outlives it.
  std::unique_ptr<transport::Fabric> owned_fabric_;
  transport::Fabric* fabric_ = nullptr;
};

absl::Status Link::Impl::Start() {
  for (const std::string& address : options_.connect) {
    endpoints_.push_back({address, 0, 0, options_.min_backoff, false});
  }
  transport::FabricHandler handler;
  handler.on_open = [this](PeerId id, const std::string& address, bool inbound) {
    OnOpen(id, address, inbound);
  };
  handler.on_frame = [this](PeerId id, transport::Frame frame) { OnFrame(id, std::move(frame)); };
  handler.on_close = [this](PeerId id, const absl::Status& why) { OnClose(id, why); };
  auto fabric = transport::Fabric::Create(options_.fabric, std::move(handler));
  if (!fabric.ok()) return fabric.status();
  owned_fabric_ = *std::move(fabric);
  fabric_ = owned_fabric_.get();
  if (!options_.listen.empty()) {
    auto bound = fabric_->Listen(options_.listen);
    if (!bound.ok()) return bound.status();
    listen_address_ = *bound;
  }
  timer_ = std::thread([this] { RunTimer(); });
  return absl::OkStatus();
}

Link::Impl::~Impl() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (timer_.joinable()) timer_.join();
  owned_fabric_.reset();
}

void Link::Impl::OnOpen(PeerId id, const std::string& address, bool inbound) {
  {
    std::lock_guard lock(mutex_);
    const base::Nanos now = base::Now();
    Peer& peer = peers_[id];
    peer.address = address;
    peer.inbound = inbound;
    peer.opened = peer.heard = now;
  }
  Send(id, MessageType::kHello, schemas::Encode(options_.hello)).IgnoreError();
}

absl::Status Link::Impl::Check(const schemas::Hello& hello) const {
  if (hello.protocol != schemas::kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat("it speaks protocol version ", hello.protocol,
                                                      ", we speak ", schemas::kProtocolVersion));
  }
  return options_.accept ? options_.accept(hello) : absl::OkStatus();
}

void Link::Impl::Refuse(PeerId id, const std::string& address, const absl::Status& why,
                        uint64_t LinkStats::*counter) {
  spdlog::warn("link peer={} refused: {}", address, base::Message(why));
  {
    std::lock_guard lock(mutex_);
    ++(stats_.*counter);
  }
  fabric_->Close(id);
}

void Link::Impl::OnHello(PeerId id, const transport::Frame& frame) {
  std::string address;
  {
    std::lock_guard lock(mutex_);
    address = peers_[id].address;
  }
  auto hello = schemas::Decode<schemas::Hello>(frame.payload);
  if (!hello.ok()) return Refuse(id, address, hello.status(), &LinkStats::malformed);
  if (absl::Status accepted = Check(*hello); !accepted.ok()) {
    return Refuse(id, address, accepted, &LinkStats::refused_hellos);
  }
  std::vector<transport::Frame> early;
  {
    std::lock_guard lock(mutex_);
    Peer& peer = peers_[id];
    if (peer.up) return;
    peer.up = true;
    early.swap(peer.early);
    ++stats_.handshakes;
    for (Endpoint& endpoint : endpoints_) {
      if (endpoint.peer != id) continue;
      endpoint.backoff = options_.min_backoff;
      stats_.reconnects += std::exchange(endpoint.was_up, true);
    }
  }
  spdlog::info("link peer={} up: {} '{}' incarnation={:016x} wire={}", address,
               schemas::Name(hello->role), hello->model, hello->incarnation,
               fabric_->Transport(id));
  if (handler_.on_up) handler_.on_up(id, *hello, address);
  for (const transport::Frame& waiting : early) Deliver(id, waiting);
}

void Link::Impl::Deliver(PeerId id, const transport::Frame& frame) {
  const auto type = static_cast<MessageType>(frame.type);
  if (type == MessageType::kPong) return;
  if (type == MessageType::kPing) {
    auto ping = schemas::Decode<schemas::Ping>(frame.payload);
    if (ping.ok()) {
      Send(id, MessageType::kPong, schemas::Encode(schemas::Pong{ping->nonce})).IgnoreError();
      return;
    }
    return Refuse(id, absl::StrCat(id), ping.status(), &LinkStats::malformed);
  }
  auto message = DecodeMessage(frame);
  if (!message.ok()) {
    return Refuse(id, absl::StrCat(id), message.status(), &LinkStats::malformed);
  }
  if (handler_.on_message) handler_.on_message(id, *std::move(message));
}

void Link::Impl::OnFrame(PeerId id, transport::Frame frame) {
  if (static_cast<MessageType>(frame.type) == MessageType::kHello) return OnHello(id, frame);
  bool too_many = false;
  {
    std::lock_guard lock(mutex_);
    const auto it = peers_.find(id);
    if (it == peers_.end()) return;
    it->second.heard = base::Now();
    if (!it->second.up) {
      too_many = it->second.early.size() >= kMaxEarlyFrames;
      if (!too_many) it->second.early.push_back(std::move(frame));
      if (!too_many) return;
    }
  }
  if (too_many) {
    return Refuse(id, absl::StrCat(id), absl::FailedPreconditionError("frames without a Hello"),
                  &LinkStats::malformed);
  }
  Deliver(id, frame);
}

void Link::Impl::OnClose(PeerId id, const absl::Status& why) {
  bool was_up = false;
  std::string address;
  {
    std::lock_guard lock(mutex_);
    if (const auto it = peers_.find(id); it != peers_.end()) {
      was_up = it->second.up;
      address = it->second.address;
      peers_.erase(it);
    }
    for (Endpoint& endpoint : endpoints_) {
      if (endpoint.peer != id) continue;
      endpoint.peer = 0;
      // Jitter keeps the processes of a cluster from coming back all at once.
      const double share = 0.5 + 0.5 * (random_() % 1024) / 1024.0;
      endpoint.next_attempt =
          base::Now() + static_cast<base::Nanos>(share * static_cast<double>(endpoint.backoff));
      endpoint.backoff = std::min(2 * endpoint.backoff, options_.max_backoff);
    }
  }
  changed_.notify_all();
  if (!was_up) return;
  spdlog::info("link peer={} down: {}", address, why.ok() ? "closed" : base::Message(why));
  if (handler_.on_down) handler_.on_down(id, why);
}

base::Nanos Link::Impl::Interval() const {
  return std::min({options_.min_backoff, options_.ping_interval, options_.handshake_timeout}) / 2;
}

void Link::Impl::RunTimer() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const base::Nanos now = base::Now();
    TendEndpoints(now);
    TendPeers(now);
    changed_.wait_for(lock, std::chrono::nanoseconds(std::max(Interval(), base::kMillisecond)));
  }
}

void Link::Impl::TendEndpoints(base::Nanos now) {
  for (Endpoint& endpoint : endpoints_) {
    if (endpoint.peer != 0 || now < endpoint.next_attempt) continue;
    auto peer = fabric_->Connect(endpoint.address);
    if (peer.ok()) {
      endpoint.peer = *peer;
      continue;
    }
    spdlog::warn("link peer={} not reached: {}", endpoint.address, base::Message(peer.status()));
    endpoint.next_attempt = now + endpoint.backoff;
    endpoint.backoff = std::min(2 * endpoint.backoff, options_.max_backoff);
  }
}

void Link::Impl::TendPeers(base::Nanos now) {
  for (auto& [id, peer] : peers_) {
    if (!peer.up) {
      if (now - peer.opened < options_.handshake_timeout) continue;
      spdlog::warn("link peer={} closed: no Hello in time", peer.address);
      peer.opened = now;  // one Close is enough; OnClose then erases the peer
      fabric_->Close(id);
      continue;
    }
    if (now - peer.heard > kSilentPings * options_.ping_interval) {
      spdlog::warn("link peer={} closed: silent for {:.1f} s", peer.address,
                   base::ToSeconds(now - peer.heard));
      peer.heard = now;
      fabric_->Close(id);
    } else if (now - std::max(peer.heard, peer.pinged) >= options_.ping_interval) {
      peer.pinged = now;
      Send(id, MessageType::kPing, schemas::Encode(schemas::Ping{static_cast<uint64_t>(now)}))
          .IgnoreError();
    }
  }
}

Link::Link(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Link::~Link() = default;

absl::StatusOr<std::unique_ptr<Link>> Link::Start(LinkOptions options, LinkHandler handler) {
  if (options.hello.incarnation == 0) options.hello.incarnation = base::RandomNonzero64();
  auto impl = std::make_unique<Impl>(std::move(options), std::move(handler));
  if (absl::Status started = impl->Start(); !started.ok()) return started;
  return std::unique_ptr<Link>(new Link(std::move(impl)));
}

absl::Status Link::SendEncoded(PeerId peer, MessageType type, std::vector<uint8_t> payload) {
  return impl_->Send(peer, type, std::move(payload));
}
void Link::Close(PeerId peer) { impl_->Close(peer); }
const std::string& Link::listen_address() const { return impl_->listen_address(); }
uint64_t Link::incarnation() const { return impl_->incarnation(); }
LinkStats Link::stats() const { return impl_->stats(); }
transport::FabricStats Link::fabric_stats() const { return impl_->fabric_stats(); }

}  // namespace specfabric::link
