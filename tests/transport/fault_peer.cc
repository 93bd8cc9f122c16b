// The peer process of fault_matrix_test, so that it can be killed and stopped:
//   fault_peer HOST:PORT SILENCE_MS
// listens and prints the bound address, then "closed CODE: MESSAGE" whenever a connection ends.
// Its answers: fault_peer.h. It ends at the end of its standard input, so that it never outlives
// the test.

#include "tests/transport/fault_peer.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/transport/child_output.h"
#include "tests/transport/network.h"
#include "transport/fabric.h"

namespace specfabric::transport {
namespace {

std::atomic<int> times_woken{0};

void WakeUp(int) { ++times_woken; }

class FaultPeer {
 public:
  explicit FaultPeer(base::Nanos silence_timeout) {
    FabricOptions options = LoopbackOptions();
    options.net_devices = TestPeerDevices();
    // Inherited from the test, whose fabric has set it to its own devices.
    setenv("UCX_NET_DEVICES", options.net_devices.c_str(), /*replace=*/1);
    options.silence_timeout = silence_timeout;
    options.receive_timeout = ReceiveTimeout(options);
    FabricHandler handler;
    handler.on_frame = [this](PeerId peer, Frame frame) { Answer(peer, std::move(frame)); };
    handler.on_tensor = [this](PeerId peer, Tensor&& tensor) { SendBack(peer, tensor); };
    handler.on_close = [](PeerId, const absl::Status& status) {
      Say("closed " + status.ToString());
    };
    fabric_ = Fabric::Create(options, std::move(handler)).value();
    pools_ = AddPools(*fabric_);
  }

  std::string Listen(const std::string& address) { return fabric_->Listen(address).value(); }

 private:
  void Answer(PeerId peer, Frame frame) {
    if (frame.type == kGoDeaf) {
      const int before = times_woken;
      while (times_woken == before) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    if (frame.type == kReport) {
      const std::string report = DescribeResources(*fabric_, pools_);
      frame.payload.assign(report.begin(), report.end());
    }
    // A peer that is closed, or does not read, gets no answer.
    (void)fabric_->Send(peer, frame.type, std::move(frame.payload));
  }

  void SendBack(PeerId peer, const Tensor& tensor) {
    auto lease = pools_.send->Acquire(tensor.fields.fence);
    if (!lease.ok()) return;
    std::memcpy(lease->data(), tensor.bytes.data(), tensor.bytes.size());
    TensorFields fields = tensor.fields;
    fields.pool = kReceivePool;
    (void)fabric_->SendTensor(peer, tensor.type, fields, *std::move(lease),
                              static_cast<uint32_t>(tensor.bytes.size()));
  }

  Pools pools_;
  std::unique_ptr<Fabric> fabric_;  // last: destroyed before what its callbacks use
};

int Main(const std::string& address, int silence_ms) {
  if (!TakeOutput()) return 1;
  struct sigaction wake_up = {};
  wake_up.sa_handler = &WakeUp;
  sigaction(SIGUSR1, &wake_up, nullptr);
  FaultPeer peer(silence_ms * base::kMillisecond);
  Say(peer.Listen(address));
  char ignored;
  ssize_t count;
  while ((count = read(STDIN_FILENO, &ignored, 1)) > 0 || (count < 0 && errno == EINTR)) {
  }
  return 0;
}

}  // namespace
}  // namespace specfabric::transport

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: fault_peer HOST:PORT SILENCE_MS\n");
    return 2;
  }
  return specfabric::transport::Main(argv[1], std::atoi(argv[2]));
}
