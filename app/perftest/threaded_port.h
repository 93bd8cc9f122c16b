#ifndef SPECFABRIC_APP_PERFTEST_THREADED_PORT_H_
#define SPECFABRIC_APP_PERFTEST_THREADED_PORT_H_

// The transport as the services use it: a Fabric with its progress thread, to which the caller's
// thread hands over and which wakes it. The methods are inline_port.h's.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transport/fabric.h"

namespace specfabric::perftest {

class ThreadedPort {
 public:
  explicit ThreadedPort(const transport::FabricOptions& options) : options_(options) {}
  ~ThreadedPort();
  ThreadedPort(const ThreadedPort&) = delete;
  ThreadedPort& operator=(const ThreadedPort&) = delete;

  absl::Status Start();
  absl::StatusOr<std::string> Listen(const std::string& address);
  absl::Status Connect(const std::string& address);
  absl::Status Accept();
  std::string Wire() const;
  std::string PayloadWire(transport::MemoryKind kind) const;  // as Fabric::PayloadTransport
  absl::Status Prepare(const transport::SlotPoolOptions& options);
  void Post(uint32_t bytes);
  absl::Status SendSlot(uint32_t bytes, absl::Span<const uint8_t> data = {});
  void SendFrame(uint16_t type, std::vector<uint8_t> payload);
  bool AwaitTensor();
  std::optional<absl::StatusOr<std::vector<uint8_t>>> Taken();
  bool AwaitPosts(int32_t most);
  absl::StatusOr<transport::Frame> AwaitFrame();
  absl::Status closed();
  uint64_t bytes_copied() const { return fabric_->stats().bytes_copied; }

 private:
  void Note();
  void Await(uint32_t seen);

  const transport::FabricOptions options_;
  // Counts what the progress thread has noted; waited on.
  std::atomic<uint32_t> news_{0};
  std::atomic<uint64_t> arrived_{0};
  std::atomic<bool> open_{false}, gone_{false};
  std::atomic<transport::PeerId> peer_{0};
  std::mutex mutex_;  // the three below
  std::deque<transport::Frame> frames_;
  std::optional<absl::StatusOr<std::vector<uint8_t>>> taken_;
  absl::Status closed_;
  uint64_t awaited_ = 0;
  std::shared_ptr<transport::SlotPool> pool_;
  std::unique_ptr<transport::Fabric> fabric_;  // last: its callbacks use the others
};

}  // namespace specfabric::perftest

#endif  // SPECFABRIC_APP_PERFTEST_THREADED_PORT_H_
