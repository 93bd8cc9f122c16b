#ifndef SPECFABRIC_APP_PERFTEST_INLINE_PORT_H_
#define SPECFABRIC_APP_PERFTEST_INLINE_PORT_H_

// The transport on the caller's own thread, polled: what the engine costs by itself. One peer.
// threaded_port.h has the same methods.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "app/perftest/plan.h"
#include "transport/engine.h"
#include "transport/fabric.h"

namespace specfabric::perftest {

class InlinePort {
 public:
  explicit InlinePort(const transport::FabricOptions& options);
  ~InlinePort();
  InlinePort(const InlinePort&) = delete;
  InlinePort& operator=(const InlinePort&) = delete;

  absl::Status Start();
  absl::StatusOr<std::string> Listen(const std::string& address);
  // Waits until the peer is there.
  absl::Status Connect(const std::string& address);
  absl::Status Accept();
  std::string Wire() const;
  std::string PayloadWire(transport::MemoryKind kind) const;  // as Fabric::PayloadTransport

  // Slots to receive into, and one registered buffer to send from.
  absl::Status Prepare(const transport::SlotPoolOptions& options);

  // Sends the first `bytes` of the buffer, as UCX thinks best. OK although the peer is gone: the
  // next wait says so.
  void Post(uint32_t bytes);
  // Sends a slot of the pool, by rendezvous when large. Waits for a slot where none is free.
  // data: what to write there first, for it to be kept where it comes; empty: the slot goes as it
  // is.
  absl::Status SendSlot(uint32_t bytes, absl::Span<const uint8_t> data = {});
  void SendFrame(uint16_t type, std::vector<uint8_t> payload);

  // Waits for the next tensor, and gives its slot back. False: the peer is gone.
  bool AwaitTensor();
  // What was in a tensor that was to be kept; nothing: none has come since the last.
  std::optional<absl::StatusOr<std::vector<uint8_t>>> Taken() {
    return std::exchange(taken_, std::nullopt);
  }
  // Waits until at most `most` of the Posts are under way. False: the peer is gone.
  bool AwaitPosts(int32_t most);
  absl::StatusOr<transport::Frame> AwaitFrame();
  absl::Status closed() const { return closed_; }
  uint64_t bytes_copied() const { return counters_.bytes_copied.Read(); }

 private:
  // Nothing else waits for this thread, so it may well look at UCX alone for a while.
  static constexpr int kPolls = 32;
  // But not for ever: on a machine with fewer cores than pollers the peer may wait for this one.
  static constexpr int kPollsBeforeYield = 256 * kPolls;

  absl::Status AwaitOpen();
  // Turns, with so many polls each, until `done` says so. False: the peer is gone.
  template <typename Done>
  bool Await(int polls, Done done);
  static void OnPosted(void* port, ucs_status_t status);

  const transport::FabricOptions options_;
  transport::PeerTable peers_;
  transport::Counters counters_;
  transport::FabricHandler handler_;
  std::unique_ptr<transport::Engine> engine_;
  std::shared_ptr<transport::SlotPool> pool_;
  transport::Lease buffer_;
  transport::PeerId peer_ = 0;
  bool open_ = false;
  bool gone_ = false;
  absl::Status closed_;
  uint64_t arrived_ = 0;  // tensors not awaited yet
  std::optional<absl::StatusOr<std::vector<uint8_t>>> taken_;
  int32_t posted_ = 0;
  std::deque<transport::Frame> frames_;
};

// Inline, like the little that they measure.

inline void InlinePort::Post(uint32_t bytes) {
  ++posted_;
  const absl::Status status = engine_->Post(peer_, kTensorType, {.pool = kPool}, buffer_, bytes,
                                            &InlinePort::OnPosted, this);
  if (!status.ok()) --posted_;
}

template <typename Done>
bool InlinePort::Await(int polls, Done done) {
  for (int turns = 1; !done(); ++turns) {
    if (gone_) return false;
    engine_->Turn(polls);
    if (turns % (kPollsBeforeYield / polls) == 0) std::this_thread::yield();
  }
  return true;
}

inline bool InlinePort::AwaitTensor() {
  if (!Await(kPolls, [this] { return arrived_ != 0; })) return false;
  --arrived_;
  return true;
}

}  // namespace specfabric::perftest

#endif  // SPECFABRIC_APP_PERFTEST_INLINE_PORT_H_
