// Which wires carry connections, and refusing to run on others.

#include <algorithm>
#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/node.h"
#include "tests/transport/tensor_node.h"
#include "transport/ucx_context.h"

namespace specfabric::transport {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Sets an environment variable until the end of a scope.
class ScopedEnvironment {
 public:
  ScopedEnvironment(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value, /*replace=*/1);
  }
  ~ScopedEnvironment() {
    if (before_.has_value()) {
      setenv(name_, before_->c_str(), /*replace=*/1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  const char* const name_;
  std::optional<std::string> before_;
};

int64_t CountOf(const Fabric& fabric, const std::string& wire) {
  const std::vector<ConnectionStats> open = fabric.Connections();
  return std::count_if(open.begin(), open.end(),
                       [&](const ConnectionStats& one) { return one.wire == wire; });
}

// Connects, counts and closes connections on whatever wire UCX picks.
void ExpectCounts(const FabricOptions& options, const std::string& part_of_wire) {
  Node server(options);
  Node client(options);
  EXPECT_EQ(client.fabric().Connections().size(), 0u);
  const std::string address = server.fabric().Listen(AnyPort()).value();
  std::vector<PeerId> peers;
  for (int i = 0; i < 3; ++i) peers.push_back(client.fabric().Connect(address).value());
  ASSERT_TRUE(client.WaitForOpen(3) && server.WaitForOpen(3));
  const std::string wire = client.fabric().Transport(peers[0]);
  EXPECT_THAT(wire, HasSubstr(part_of_wire));
  EXPECT_EQ(CountOf(client.fabric(), wire), 3);
  EXPECT_EQ(client.fabric().Connections().size(), 3u);
  EXPECT_EQ(CountOf(server.fabric(), server.fabric().Transport(server.opened()[0].peer)), 3);
  client.fabric().Close(peers[0]);
  ASSERT_TRUE(client.WaitForClose(peers[0]) && server.WaitForCloses(1));
  EXPECT_EQ(CountOf(client.fabric(), wire), 2);
  EXPECT_EQ(server.fabric().Connections().size(), 2u);
  EXPECT_EQ(client.fabric().Transport(peers[0]), "");
  client.fabric().Close(peers[1]);
  client.fabric().Close(peers[2]);
  ASSERT_TRUE(client.WaitForCloses(3) && server.WaitForCloses(3));
  EXPECT_EQ(client.fabric().Connections().size(), 0u);
  EXPECT_EQ(server.fabric().Connections().size(), 0u);
}

TEST(WireTest, CountsSharedMemory) {
  const ScopedEnvironment wires("UCX_TLS", "all");
  ExpectCounts(LoopbackOptions(), "/memory");
}

TEST(WireTest, CountsTcp) {
  const ScopedEnvironment wires("UCX_TLS", "tcp");
  ExpectCounts(LoopbackOptions(), "tcp/lo");
}

TEST(WireTest, SharedMemoryCanBeSwitchedOff) {
  const ScopedEnvironment wires("UCX_TLS", "all");
  FabricOptions options = LoopbackOptions();
  options.shared_memory = false;
  ExpectCounts(options, "tcp/lo");
}

// The bytes of a tensor, and not of the active messages that announce it: the wire that was left
// for them is named.
TEST(WireTest, NamesTheWireOfATensorsBytes) {
  for (const auto& [allowed, used] :
       {std::pair("tcp", "tcp/lo"), std::pair("tcp,posix", "posix/memory"),
        std::pair("tcp,sysv", "sysv/memory")}) {
    const ScopedEnvironment wires("UCX_TLS", allowed);
    TensorPair pair(TensorNode::Settings{});
    ASSERT_TRUE(pair.ok());
    const auto path = [&](MemoryKind kind) {
      return pair.sender.fabric().PayloadTransport(pair.to_receiver, kind);
    };
    const TensorFields fields = {.pool = TensorNode::kPool, .tag = 1};
    ASSERT_TRUE(pair.sender.SendPattern(pair.to_receiver, 1, fields, 100).ok());
    ASSERT_TRUE(pair.receiver.WaitForTensors(1) && pair.sender.WaitForAllFree());
    EXPECT_EQ(path(MemoryKind::kHost), "");
    ASSERT_TRUE(pair.sender.SendPattern(pair.to_receiver, 1, fields, 1 << 20).ok());
    ASSERT_TRUE(pair.receiver.WaitForTensors(2) && pair.sender.WaitForAllFree());
    EXPECT_EQ(path(MemoryKind::kHost), HasMatureProtocols() ? used : "");
    EXPECT_EQ(path(MemoryKind::kCuda), "");
    pair.sender.fabric().Close(pair.to_receiver);
    ASSERT_TRUE(pair.sender.node().WaitForCloses(1));
    EXPECT_EQ(path(MemoryKind::kHost), "");
  }
}

TEST(WireTest, ConnectionsThatFailAreNotCounted) {
  const ScopedEnvironment wires("UCX_TLS", "tcp");
  Node client;
  const PeerId peer = client.fabric().Connect("127.0.0.1:1").value();
  ASSERT_TRUE(client.WaitForClose(peer));
  EXPECT_EQ(client.fabric().Connections().size(), 0u);
}

// UCX_TLS=tcp leaves no RDMA device on any machine.
void ExpectRefusal(bool FabricOptions::*requirement, const std::string& what) {
  const ScopedEnvironment wires("UCX_TLS", "tcp");
  FabricOptions options = LoopbackOptions();
  options.*requirement = true;
  for (const absl::Status& status :
       {Fabric::CheckRequirements(options), Fabric::Create(options, {}).status()}) {
    const std::string message(status.message());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << message;
    EXPECT_THAT(message, HasSubstr(what));
    EXPECT_THAT(message, Not(HasSubstr("\n")));
  }
}

TEST(WireTest, RdmaIsRefusedWhereThereIsNone) {
  ExpectRefusal(&FabricOptions::require_rdma, "RDMA is required");
}

TEST(WireTest, GpudirectIsRefusedWhereThereIsNone) {
  ExpectRefusal(&FabricOptions::require_gpudirect, "GPUDirect is required");
}

// After a refusal another fabric can start.
TEST(WireTest, RefusalDoesNotAffectOtherFabrics) {
  const ScopedEnvironment wires("UCX_TLS", "tcp");
  FabricOptions options = LoopbackOptions();
  options.require_rdma = true;
  EXPECT_FALSE(Fabric::Create(options, {}).ok());
  ExpectCounts(LoopbackOptions(), "tcp/lo");
}

}  // namespace
}  // namespace specfabric::transport
