#include "app/perftest/inline_port.h"

#include <cstring>
#include <utility>

#include "app/perftest/pattern.h"

namespace specfabric::perftest {

using transport::Engine;
using transport::Frame;
using transport::Outgoing;
using transport::PeerId;

InlinePort::InlinePort(const transport::FabricOptions& options)
    : options_(options), peers_(options.max_outstanding_sends, options.max_outstanding_bytes) {
  handler_.on_open = [this](PeerId peer, const std::string&, bool) {
    if (peer_ == 0) peer_ = peer;
    open_ = open_ || peer == peer_;
  };
  handler_.on_frame = [this](PeerId peer, Frame frame) {
    if (peer == peer_) frames_.push_back(std::move(frame));
  };
  handler_.on_tensor = [this](PeerId, transport::Tensor&& tensor) {
    if (tensor.fields.tag == kCheckTag) taken_ = ReadTensor(tensor);
    ++arrived_;
  };
  handler_.on_refused = [this](PeerId, const transport::TensorFields&, const absl::Status& status) {
    gone_ = true;
    closed_ = status;
  };
  handler_.on_close = [this](PeerId peer, const absl::Status& status) {
    if (peer != peer_) return;
    gone_ = true;
    closed_ = status;
  };
}

InlinePort::~InlinePort() {
  if (engine_) engine_->Shutdown();
}

absl::Status InlinePort::Start() {
  auto engine = Engine::Create(options_, handler_, peers_, counters_);
  if (!engine.ok()) return engine.status();
  engine_ = *std::move(engine);
  return absl::OkStatus();
}

absl::StatusOr<std::string> InlinePort::Listen(const std::string& address) {
  auto socket = transport::ListenSocket::Open(address);
  if (!socket.ok()) return socket.status();
  return engine_->Listen(*std::move(socket));
}

absl::Status InlinePort::Connect(const std::string& address) {
  const auto resolved = transport::ResolveAddress(address);
  if (!resolved.ok()) return resolved.status();
  peer_ = peers_.Name();
  peers_.Add(peer_);
  engine_->Connect(peer_, *resolved, address);
  return AwaitOpen();
}

// Nobody need hurry yet: the other core may be the one that the peer starts on.
absl::Status InlinePort::AwaitOpen() {
  while (!open_ && !gone_) {
    if (!engine_->Turn()) engine_->Sleep(options_.max_sleep);
  }
  return gone_ ? closed_ : absl::OkStatus();
}

absl::Status InlinePort::Accept() { return AwaitOpen(); }

std::string InlinePort::Wire() const { return engine_->Transport(peer_); }

std::string InlinePort::PayloadWire(transport::MemoryKind kind) const {
  return engine_->PayloadTransport(peer_, kind);
}

absl::Status InlinePort::Prepare(const transport::SlotPoolOptions& options) {
  auto pool = engine_->AddPool(kPool, options);
  if (!pool.ok()) return pool.status();
  pool_ = *std::move(pool);
  auto buffer = pool_->Acquire({});
  if (!buffer.ok()) return buffer.status();
  buffer_ = *std::move(buffer);
  if (options.kind == transport::MemoryKind::kHost) {
    std::memset(buffer_.data(), 1, options.slot_bytes);
  }
  return absl::OkStatus();
}

void InlinePort::OnPosted(void* port, ucs_status_t) { --static_cast<InlinePort*>(port)->posted_; }

absl::Status InlinePort::SendSlot(uint32_t bytes, absl::Span<const uint8_t> data) {
  auto lease = pool_->Acquire({});
  while (!lease.ok() && !gone_) {
    engine_->Turn();
    lease = pool_->Acquire({});
  }
  if (!lease.ok()) return closed_;
  if (absl::Status written = data.empty() ? absl::OkStatus() : WriteSlot(*lease, data);
      !written.ok()) {
    return written;
  }
  const absl::Status reserved = peers_.Reserve(peer_, bytes);
  if (!reserved.ok()) return reserved;
  Outgoing frame = {.kind = transport::FrameKind::kTensor,
                    .type = kTensorType,
                    .fields = {.pool = kPool, .tag = data.empty() ? 0 : kCheckTag}};
  frame.bytes = bytes;
  PointAtSlot(*lease, frame);
  frame.lease = *std::move(lease);
  engine_->Send(peer_, std::move(frame));
  return absl::OkStatus();
}

void InlinePort::SendFrame(uint16_t type, std::vector<uint8_t> payload) {
  if (!peers_.Reserve(peer_, payload.size()).ok()) return;
  Outgoing frame = {
      .kind = transport::FrameKind::kData, .type = type, .payload = std::move(payload)};
  frame.data = frame.payload.data();
  frame.bytes = frame.payload.size();
  engine_->Send(peer_, std::move(frame));
}

bool InlinePort::AwaitPosts(int32_t most) {
  return Await(1, [this, most] { return posted_ <= most; });
}

absl::StatusOr<Frame> InlinePort::AwaitFrame() {
  if (!Await(1, [this] { return !frames_.empty(); })) {
    return closed_.ok() ? absl::UnavailableError("the peer has closed") : closed_;
  }
  Frame frame = std::move(frames_.front());
  frames_.pop_front();
  return frame;
}

}  // namespace specfabric::perftest
