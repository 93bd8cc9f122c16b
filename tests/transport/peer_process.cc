// The other side of process_test, in a process of its own so that it can be killed:
//   peer_process echo HOST:PORT    listens, prints the bound address, sends every frame back
//   peer_process flood HOST:PORT   keeps connected and sends large frames without end
// It ends when its standard input does, so that it never outlives the test.

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <future>
#include <string>
#include <thread>

#include "tests/transport/network.h"
#include "transport/fabric.h"

namespace specfabric::transport {
namespace {

int Main(const std::string& mode, const std::string& address) {
  std::promise<Fabric*> promise;
  const std::shared_future<Fabric*> created = promise.get_future().share();
  FabricHandler handler;
  handler.on_frame = [created](PeerId peer, Frame frame) {
    (void)created.get()->Send(peer, frame.type, std::move(frame.payload));
  };
  FabricOptions options = LoopbackOptions();
  options.max_outstanding_sends = 16;
  auto fabric = Fabric::Create(options, std::move(handler));
  if (!fabric.ok()) {
    std::fprintf(stderr, "peer_process: %s\n", fabric.status().ToString().c_str());
    return 1;
  }
  promise.set_value(fabric->get());
  std::atomic<bool> stop{false};
  std::thread flood;
  if (mode == "flood") {
    flood = std::thread([&] {
      PeerId peer = 0;
      while (!stop) {
        const absl::Status sent = (*fabric)->Send(peer, 7, std::vector<uint8_t>(1 << 20));
        if (absl::IsNotFound(sent)) peer = (*fabric)->Connect(address).value();
        // Not connected, or too many outstanding: give the progress thread the core.
        if (!sent.ok()) std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    });
  } else {
    const auto bound = (*fabric)->Listen(address);
    std::printf("%s\n", bound.ok() ? bound->c_str() : bound.status().ToString().c_str());
    std::fflush(stdout);
  }
  char ignored;
  while (read(STDIN_FILENO, &ignored, 1) > 0) {
  }
  stop = true;
  if (flood.joinable()) flood.join();
  return 0;
}

}  // namespace
}  // namespace specfabric::transport

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: peer_process echo|flood HOST:PORT\n");
    return 2;
  }
  return specfabric::transport::Main(argv[1], argv[2]);
}
