// The peer process of the tests with two processes, so that it can be killed and stopped:
//   peer_process echo HOST:PORT     listens, prints the bound address, sends every frame back, and
//                                   for a tensor an empty frame of its type
//   peer_process flood HOST:PORT    keeps connected and sends large frames without end
//   peer_process tensors HOST:PORT  keeps connected and sends tensors of 4 MiB to pool 1 without
//                                   end, each with the pattern of its tag
//   peer_process caller HOST:PORT   keeps connected, prints "open" and "closed: WHY", and sends
//                                   every frame back
// A third argument is the silence_timeout in milliseconds. It ends at the end of its standard
// input, so that it never outlives the test.

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>

#include "base/status.h"
#include "tests/transport/child_output.h"
#include "tests/transport/network.h"
#include "tests/transport/pattern.h"
#include "transport/fabric.h"

namespace specfabric::transport {
namespace {

constexpr uint8_t kPool = 1;
constexpr size_t kTensorBytes = 4 << 20;

// Calls `send` for the peer repeatedly until `stop`.
template <typename Send>
void KeepSending(Fabric& fabric, const std::string& address, const std::atomic<bool>& stop,
                 Send send) {
  PeerId peer = 0;
  while (!stop) {
    const absl::Status sent = send(peer);
    if (absl::IsNotFound(sent)) peer = fabric.Connect(address).value();
    // Not connected, or too many outstanding: give the progress thread the core.
    if (!sent.ok()) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void Flood(Fabric& fabric, const std::string& address, const std::atomic<bool>& stop) {
  KeepSending(fabric, address, stop,
              [&](PeerId peer) { return fabric.Send(peer, 7, std::vector<uint8_t>(1 << 20)); });
}

void SendTensors(Fabric& fabric, SlotPool& pool, const std::string& address,
                 const std::atomic<bool>& stop) {
  uint64_t tag = 0;
  KeepSending(fabric, address, stop, [&](PeerId peer) {
    const TensorFields fields = {{1, static_cast<uint32_t>(tag)}, kPool, tag};
    auto lease = pool.Acquire(fields.fence);
    if (!lease.ok()) return lease.status();
    FillPattern(lease->data(), kTensorBytes, tag++);
    return fabric.SendTensor(peer, 8, fields, *std::move(lease), kTensorBytes);
  });
}

void KeepConnected(Fabric& fabric, const std::string& address, const std::atomic<bool>& connected,
                   const std::atomic<bool>& stop) {
  while (!stop) {
    if (!connected) (void)fabric.Connect(address);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

int Main(const std::string& mode, const std::string& address, int silence_ms) {
  if (!TakeOutput()) return 1;
  std::promise<Fabric*> promise;
  const std::shared_future<Fabric*> created = promise.get_future().share();
  std::atomic<bool> connected{false};
  const bool talks = mode == "caller";
  FabricHandler handler;
  handler.on_open = [&](PeerId, const std::string&, bool) {
    connected = true;
    if (talks) Say("open");
  };
  handler.on_close = [&](PeerId, const absl::Status& status) {
    if (talks && connected) Say("closed: " + base::Message(status));
    connected = false;
  };
  handler.on_frame = [created](PeerId peer, Frame frame) {
    (void)created.get()->Send(peer, frame.type, std::move(frame.payload));
  };
  handler.on_tensor = [created](PeerId peer, const Tensor& tensor) {
    (void)created.get()->Send(peer, tensor.type, {});
  };
  FabricOptions options = LoopbackOptions();
  options.max_outstanding_sends = 16;
  if (silence_ms >= 0) options.silence_timeout = silence_ms * base::kMillisecond;
  auto fabric = Fabric::Create(options, std::move(handler));
  if (!fabric.ok()) {
    std::fprintf(stderr, "peer_process: %s\n", fabric.status().ToString().c_str());
    return 1;
  }
  promise.set_value(fabric->get());
  const auto pool = (*fabric)->AddPool(kPool, {MemoryKind::kHost, kTensorBytes, 4});
  if (!pool.ok()) {
    std::fprintf(stderr, "peer_process: %s\n", pool.status().ToString().c_str());
    return 1;
  }
  std::atomic<bool> stop{false};
  std::thread work;
  if (mode == "flood") {
    work = std::thread([&] { Flood(**fabric, address, stop); });
  } else if (mode == "tensors") {
    work = std::thread([&] { SendTensors(**fabric, **pool, address, stop); });
  } else if (mode == "caller") {
    work = std::thread([&] { KeepConnected(**fabric, address, connected, stop); });
  } else {
    const auto bound = (*fabric)->Listen(address);
    Say(bound.ok() ? *bound : bound.status().ToString());
  }
  char ignored;
  while (read(STDIN_FILENO, &ignored, 1) > 0) {
  }
  stop = true;
  if (work.joinable()) work.join();
  return 0;
}

}  // namespace
}  // namespace specfabric::transport

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: peer_process echo|flood|tensors|caller HOST:PORT [SILENCE_MS]\n");
    return 2;
  }
  return specfabric::transport::Main(argv[1], argv[2], argc == 4 ? std::atoi(argv[3]) : -1);
}
