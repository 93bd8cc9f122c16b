#ifndef SPECFABRIC_TESTS_TRANSPORT_NODE_H_
#define SPECFABRIC_TESTS_TRANSPORT_NODE_H_

// A fabric whose events are recorded and can be waited for.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/transport/network.h"
#include "transport/fabric.h"

namespace specfabric::transport {

// How long a test waits for something that must happen; reaching it is a failure at any load.
constexpr std::chrono::seconds kTestTimeout{60};

// True once `condition` is; false: it did not come true in time.
inline bool Eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kTestTimeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

class Node {
 public:
  struct Opened {
    PeerId peer;
    std::string address;
    bool inbound;
  };

  // With `echo` every frame is sent back to its sender. The handler gets tensors; all else is
  // recorded here.
  explicit Node(const FabricOptions& options = LoopbackOptions(), bool echo = false,
                FabricHandler handler = {}) {
    handler.on_open = [this](PeerId peer, const std::string& address, bool inbound) {
      Note([&] { opened_.push_back({peer, address, inbound}); });
    };
    handler.on_frame = [this, echo](PeerId peer, Frame frame) {
      if (echo) (void)fabric_ready()->Send(peer, frame.type, frame.payload);
      Note([&] { frames_.emplace_back(peer, std::move(frame)); });
    };
    handler.on_close = [this](PeerId peer, const absl::Status& status) {
      Note([&] { closed_[peer].push_back(status); });
    };
    auto fabric = Fabric::Create(options, std::move(handler));
    if (!fabric.ok()) {
      std::fprintf(stderr, "%s\n", fabric.status().ToString().c_str());
      std::abort();
    }
    fabric_ = *std::move(fabric);
    std::lock_guard lock(mutex_);
    ready_ = fabric_.get();
    changed_.notify_all();
  }

  Fabric& fabric() { return *fabric_; }
  void Destroy() { fabric_.reset(); }

  // Changes state that a condition of WaitFor reads.
  void Note(const std::function<void()>& change) {
    std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }
  // False: `condition` did not come true in time. It is evaluated under the node's lock.
  bool WaitFor(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kTestTimeout, condition);
  }
  bool WaitForOpen(size_t count) {
    return WaitFor([&] { return opened_.size() >= count; });
  }
  bool WaitForFrames(size_t count) {
    return WaitFor([&] { return frames_.size() >= count; });
  }
  bool WaitForClose(PeerId peer) {
    return WaitFor([&] { return closed_.contains(peer); });
  }
  // True: the connection opened. False: it failed, or nothing happened.
  bool WaitForOutcome(PeerId peer) {
    bool open = false;
    WaitFor([&] {
      for (const Opened& opened : opened_) open = open || opened.peer == peer;
      return open || closed_.contains(peer);
    });
    return open;
  }
  bool WaitForCloses(size_t count) {
    return WaitFor([&] { return closed_.size() >= count; });
  }

  std::vector<Opened> opened() {
    std::lock_guard lock(mutex_);
    return opened_;
  }
  std::vector<std::pair<PeerId, Frame>> TakeFrames() {
    std::lock_guard lock(mutex_);
    return std::exchange(frames_, {});
  }
  // Drops what was recorded of connections, for tests that make very many.
  void ForgetConnections() {
    std::lock_guard lock(mutex_);
    opened_.clear();
    closed_.clear();
  }
  // All statuses that on_close gave for the peer: there must be one.
  std::vector<absl::Status> closed(PeerId peer) {
    std::lock_guard lock(mutex_);
    const auto found = closed_.find(peer);
    return found == closed_.end() ? std::vector<absl::Status>() : found->second;
  }

 private:
  // Callbacks may run before Create has returned and while the fabric is being destroyed.
  Fabric* fabric_ready() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ready_ != nullptr; });
    return ready_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Opened> opened_;
  std::vector<std::pair<PeerId, Frame>> frames_;
  std::map<PeerId, std::vector<absl::Status>> closed_;
  Fabric* ready_ = nullptr;
  std::unique_ptr<Fabric> fabric_;  // last: destroyed before what its callbacks use
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TESTS_TRANSPORT_NODE_H_
