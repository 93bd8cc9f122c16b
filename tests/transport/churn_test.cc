// Makes, uses and closes connections repeatedly, against a server in another process: the memory
// and descriptors of neither may grow. SPECFABRIC_CHURN_CYCLES sets how often (1,000 unless it is
// set).

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/child_process.h"
#include "tests/transport/process_info.h"
#include "tests/transport/tensor_node.h"

namespace specfabric::transport {
namespace {

using ::testing::SizeIs;

// Over these, UCX fills its caches and malloc its arenas.
constexpr int kWarmUp = 200;
// Growth allowed on each side: every peer index is used once before any is reused, and the
// allocator's high-water mark moves a little. A leak of one UCX endpoint (several KiB), or
// one registration, a cycle would be far above it.
constexpr size_t kSlackBytes = 2 << 20;
constexpr size_t kSlackBytesEachCycle = 64;

int Cycles() {
  const char* cycles = std::getenv("SPECFABRIC_CHURN_CYCLES");
  return cycles == nullptr ? 1000 : std::atoi(cycles);
}

void Print(const char* who, const ProcessInfo& info) {
  std::printf("%s: %zu KiB resident, %zu descriptors, %zu threads, %zu mappings (%zu shared)\n",
              who, info.resident_bytes / 1024, info.file_descriptors, info.threads, info.mappings,
              info.shared_mappings);
  std::fflush(stdout);
}

class ChurnTest : public ::testing::Test {
 protected:
  ChurnTest() : client_(TensorNode::Settings{}) { address_ = server_.ReadLine(); }

  // Connects, sends a small and a large message and a tensor, waits for the replies, closes.
  void Cycle() {
    Node& node = client_.node();
    const PeerId peer = client_.fabric().Connect(address_).value();
    ASSERT_TRUE(client_.fabric().Send(peer, 1, {1, 2, 3}).ok());
    ASSERT_TRUE(client_.fabric().Send(peer, 2, std::vector<uint8_t>(100'000, 7)).ok());
    const TensorFields fields = {{}, TensorNode::kPool, peer};
    ASSERT_TRUE(client_.SendPattern(peer, 3, fields, 200'000).ok());
    ASSERT_TRUE(node.WaitForFrames(3));
    for (const auto& [from, frame] : node.TakeFrames()) ASSERT_EQ(from, peer);
    client_.fabric().Close(peer);
    ASSERT_TRUE(node.WaitForClose(peer));
    ASSERT_TRUE(node.closed(peer)[0].ok()) << node.closed(peer)[0];
    node.ForgetConnections();
  }

  // Waits until nothing is closing and no UCX listener is left, on both sides.
  void Settle() {
    EXPECT_TRUE(Eventually([&] {
      const auto descriptors = [&] {
        return std::pair(ProcessInfo::Of(getpid()).file_descriptors,
                         ProcessInfo::Of(server_.pid()).file_descriptors);
      };
      const auto before = descriptors();
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      return client_.stats().releasing == 0 && descriptors() == before;
    }));
  }

  ChildProcess server_{{SPECFABRIC_PEER_PROCESS, "echo", AnyPort()}};
  TensorNode client_;
  std::string address_;
};

void ExpectNoGrowth(const ProcessInfo& before, const ProcessInfo& after, int cycles) {
  if (kMemoryIsMeasurable) {
    EXPECT_LE(after.resident_bytes,
              before.resident_bytes + kSlackBytes + cycles * kSlackBytesEachCycle);
  }
  EXPECT_LE(after.file_descriptors, before.file_descriptors);
  EXPECT_LE(after.threads, before.threads);
  EXPECT_LE(after.shared_mappings, before.shared_mappings);
  // The allocator may map and unmap a few of its own.
  EXPECT_LE(after.mappings, before.mappings + 16);
}

TEST_F(ChurnTest, ResourcesDoNotGrow) {
  for (int i = 0; i < kWarmUp; ++i) ASSERT_NO_FATAL_FAILURE(Cycle()) << i;
  Settle();
  const ProcessInfo client_before = ProcessInfo::Of(getpid());
  const ProcessInfo server_before = ProcessInfo::Of(server_.pid());
  Print("client before", client_before);
  Print("server before", server_before);
  const int cycles = Cycles();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < cycles; ++i) {
    ASSERT_NO_FATAL_FAILURE(Cycle()) << i;
    if (cycles >= 10'000 && (i + 1) % (cycles / 10) == 0) {
      Print(("client after " + std::to_string(i + 1)).c_str(), ProcessInfo::Of(getpid()));
      Print(("server after " + std::to_string(i + 1)).c_str(), ProcessInfo::Of(server_.pid()));
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  Settle();
  const ProcessInfo client_after = ProcessInfo::Of(getpid());
  const ProcessInfo server_after = ProcessInfo::Of(server_.pid());
  Print("client after", client_after);
  Print("server after", server_after);
  std::printf("%d cycles in %.1f s\n", cycles, took.count());
  ExpectNoGrowth(client_before, client_after, cycles);
  ExpectNoGrowth(server_before, server_after, cycles);
  const FabricStats stats = client_.stats();
  EXPECT_EQ(stats.opened, static_cast<uint64_t>(kWarmUp + cycles));
  EXPECT_EQ(stats.closed, stats.opened);
  EXPECT_EQ(stats.releasing, 0u);
  EXPECT_EQ(stats.send_errors, 0u);
  EXPECT_TRUE(client_.WaitForAllFree());
  EXPECT_TRUE(client_.fabric().Connections().empty());
}

}  // namespace
}  // namespace specfabric::transport
