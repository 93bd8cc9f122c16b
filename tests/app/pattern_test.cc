// What perftest says of bytes that do not come out as they went in.

#include "app/perftest/pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "app/perftest/measure.h"
#include "app/perftest/plan.h"
#include "app/perftest/threaded_port.h"
#include "tests/transport/network.h"

namespace specfabric::perftest {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kBytes = 100'000;  // by rendezvous

TEST(PatternTest, TellsWhatHasChanged) {
  std::vector<uint8_t> bytes = Pattern(1000, 1);
  EXPECT_TRUE(CheckPattern(bytes, 1000, 1).ok());
  EXPECT_NE(bytes, Pattern(1000, 2));
  bytes[999] ^= 1;
  EXPECT_THAT(std::string(CheckPattern(bytes, 1000, 1).message()), HasSubstr("byte 999 of 1000"));
  bytes.pop_back();
  EXPECT_THAT(std::string(CheckPattern(bytes, 1000, 1).message()),
              HasSubstr("of 1000 bytes that were sent 999 came"));
}

Plan Logits() {
  Plan plan;
  plan.test = TestKind::kLogits;
  plan.bytes = kBytes;
  plan.iterations = 1;
  plan.warm_up = 0;
  return plan;
}

std::vector<uint8_t> Spoiled(uint8_t seed) {
  std::vector<uint8_t> bytes = Pattern(kBytes, seed);
  bytes[77'777] ^= 8;
  return bytes;
}

// A peer of whose bytes one has changed, by hand; the other runs as it does.
class CorruptingPeerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(server_.Start().ok());
    ASSERT_TRUE(client_.Start().ok());
    const auto address = server_.Listen(transport::AnyPort());
    ASSERT_TRUE(address.ok()) << address.status();
    std::thread accepts([this] { EXPECT_TRUE(server_.Accept().ok()); });
    EXPECT_TRUE(client_.Connect(*address).ok());
    accepts.join();
  }

  ThreadedPort server_{transport::LoopbackOptions()}, client_{transport::LoopbackOptions()};
};

TEST_F(CorruptingPeerTest, TheClientSaysWhatCameBack) {
  std::thread serves([this] {
    ASSERT_TRUE(server_.AwaitFrame().ok());
    ASSERT_TRUE(Prepare(server_, Logits()).ok());
    server_.SendFrame(kReadyFrame, {});
    ASSERT_TRUE(server_.AwaitTensor());
    ASSERT_TRUE(server_.SendSlot(kBytes).ok());
    ASSERT_TRUE(server_.AwaitFrame().ok());
    ASSERT_TRUE(server_.AwaitTensor());
    server_.SendFrame(kCheckFrame, {});
    ASSERT_TRUE(server_.SendSlot(kBytes, Spoiled(2)).ok());
  });
  ASSERT_TRUE(Prepare(client_, Logits()).ok());
  const absl::Status said = RunClient(client_, Logits()).status();
  serves.join();
  EXPECT_THAT(std::string(said.message()), HasSubstr("what came back: byte 77777 of 100000"));
}

TEST_F(CorruptingPeerTest, TheServerSaysWhatItGot) {
  absl::Status said;
  std::thread serves([&] { said = RunServer(server_); });
  ASSERT_TRUE(Prepare(client_, Logits()).ok());
  const std::string plan = Encode(Logits());
  client_.SendFrame(kPlanFrame, {plan.begin(), plan.end()});
  ASSERT_TRUE(client_.AwaitFrame().ok());
  ASSERT_TRUE(client_.SendSlot(kBytes).ok());
  ASSERT_TRUE(client_.AwaitTensor());
  client_.SendFrame(kCheckFrame, {});
  ASSERT_TRUE(client_.SendSlot(kBytes, Spoiled(1)).ok());
  const auto found = client_.AwaitFrame();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->payload.empty());
  client_.SendFrame(kCheckFrame, {});  // it waits for the client's end, or another word
  serves.join();
  EXPECT_THAT(std::string(said.message()), HasSubstr("byte 77777 of 100000"));
}

}  // namespace
}  // namespace specfabric::perftest
