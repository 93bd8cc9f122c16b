#include "app/perftest/threaded_port.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "app/perftest/pattern.h"
#include "app/perftest/plan.h"
#include "transport/gpu.h"

namespace specfabric::perftest {

using transport::Frame;
using transport::PeerId;
using transport::SlotState;

ThreadedPort::~ThreadedPort() = default;

void ThreadedPort::Note() {
  news_.fetch_add(1, std::memory_order_release);
  news_.notify_one();
}

void ThreadedPort::Await(uint32_t seen) { news_.wait(seen, std::memory_order_acquire); }

absl::Status ThreadedPort::Start() {
  transport::FabricHandler handler;
  handler.on_open = [this](PeerId peer, const std::string&, bool) {
    PeerId none = 0;
    peer_.compare_exchange_strong(none, peer);
    if (peer_ == peer) open_ = true;
    Note();
  };
  handler.on_frame = [this](PeerId, Frame frame) {
    {
      std::lock_guard lock(mutex_);
      frames_.push_back(std::move(frame));
    }
    Note();
  };
  handler.on_tensor = [this](PeerId, transport::Tensor&& tensor) {
    if (tensor.fields.tag == kCheckTag) {
      std::lock_guard lock(mutex_);
      taken_ = ReadTensor(tensor);
    }
    tensor.lease = {};
    ++arrived_;
    Note();
  };
  const auto end = [this](const absl::Status& status) {
    {
      std::lock_guard lock(mutex_);
      closed_ = status;
    }
    gone_ = true;
    Note();
  };
  handler.on_refused = [end](PeerId, const transport::TensorFields&, const absl::Status& status) {
    end(status);
  };
  handler.on_close = [end](PeerId, const absl::Status& status) { end(status); };
  auto fabric = transport::Fabric::Create(options_, std::move(handler));
  if (!fabric.ok()) return fabric.status();
  fabric_ = *std::move(fabric);
  return absl::OkStatus();
}

absl::StatusOr<std::string> ThreadedPort::Listen(const std::string& address) {
  return fabric_->Listen(address);
}

absl::Status ThreadedPort::Connect(const std::string& address) {
  const auto peer = fabric_->Connect(address);
  if (!peer.ok()) return peer.status();
  return Accept();
}

absl::Status ThreadedPort::Accept() {
  while (true) {
    const uint32_t seen = news_;
    if (gone_) return closed();
    if (open_) return absl::OkStatus();
    Await(seen);
  }
}

std::string ThreadedPort::Wire() const { return fabric_->Transport(peer_); }

std::string ThreadedPort::PayloadWire(transport::MemoryKind kind) const {
  return fabric_->PayloadTransport(peer_, kind);
}

absl::Status ThreadedPort::Prepare(const transport::SlotPoolOptions& options) {
  auto pool = fabric_->AddPool(kPool, options);
  if (!pool.ok()) return pool.status();
  pool_ = *std::move(pool);
  // Its context is the progress thread's so far.
  const bool on_gpu = options.kind == transport::MemoryKind::kCuda;
  return on_gpu ? transport::UseGpu(std::max(options_.gpu, 0)) : absl::OkStatus();
}

std::optional<absl::StatusOr<std::vector<uint8_t>>> ThreadedPort::Taken() {
  std::lock_guard lock(mutex_);
  return std::exchange(taken_, std::nullopt);
}

void ThreadedPort::Post(uint32_t bytes) { (void)SendSlot(bytes); }

absl::Status ThreadedPort::SendSlot(uint32_t bytes, absl::Span<const uint8_t> data) {
  auto lease = pool_->Acquire({});
  while (!lease.ok() && !gone_) {
    // Slots come back by the progress thread, which tells nobody.
    std::this_thread::yield();
    lease = pool_->Acquire({});
  }
  if (!lease.ok()) return closed();
  if (absl::Status written = data.empty() ? absl::OkStatus() : WriteSlot(*lease, data);
      !written.ok()) {
    return written;
  }
  const transport::TensorFields fields = {.pool = kPool, .tag = data.empty() ? 0 : kCheckTag};
  return fabric_->SendTensor(peer_, kTensorType, fields, *std::move(lease), bytes);
}

void ThreadedPort::SendFrame(uint16_t type, std::vector<uint8_t> payload) {
  (void)fabric_->Send(peer_, type, std::move(payload));
}

bool ThreadedPort::AwaitTensor() {
  while (true) {
    const uint32_t seen = news_;
    if (arrived_ > awaited_) {
      ++awaited_;
      return true;
    }
    if (gone_) return false;
    Await(seen);
  }
}

bool ThreadedPort::AwaitPosts(int32_t most) {
  const auto under_way = [this] {
    const auto counts = pool_->CountStates();
    return counts[static_cast<size_t>(SlotState::kFilling)] +
           counts[static_cast<size_t>(SlotState::kSending)];
  };
  while (under_way() > most) {
    if (gone_) return false;
    std::this_thread::yield();
  }
  return true;
}

absl::StatusOr<Frame> ThreadedPort::AwaitFrame() {
  while (true) {
    const uint32_t seen = news_;
    {
      std::lock_guard lock(mutex_);
      if (!frames_.empty()) {
        Frame frame = std::move(frames_.front());
        frames_.pop_front();
        return frame;
      }
    }
    if (gone_) {
      const absl::Status status = closed();
      return status.ok() ? absl::UnavailableError("the peer has closed") : status;
    }
    Await(seen);
  }
}

absl::Status ThreadedPort::closed() {
  std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace specfabric::perftest
