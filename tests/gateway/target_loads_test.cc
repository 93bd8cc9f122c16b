#include "gateway/target_loads.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "metrics/registry.h"

namespace specfabric::gateway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kLabels = R"({engine="0",model_name="m"})";

class TargetLoadsTest : public ::testing::Test {
 protected:
  void Up(link::PeerId peer, uint64_t incarnation) {
    schemas::Hello hello;
    hello.incarnation = incarnation;
    loads_.Up(peer, hello);
  }
  double Value(const std::string& name, const std::string& labels = kLabels) {
    const std::string text = registry_.Render();
    const size_t at = text.find("\n" + name + labels + " ");
    return at == std::string::npos ? -1
                                   : std::stod(text.substr(at + name.size() + labels.size() + 2));
  }
  // As a target of 100 blocks that has drafted four tokens a round and accepted one.
  static schemas::TargetLoad Load(int32_t running, int64_t rounds = 0) {
    return {.running = running,
            .waiting = 2 * running,
            .kv_blocks = 100,
            .kv_blocks_used = 10 * running,
            .block_size = 16,
            .drafts = rounds,
            .drafted = 4 * rounds,
            .accepted = rounds,
            .accepted_at = {rounds, 0}};
  }

  metrics::Registry registry_;
  metrics::RouterMetrics metrics_{registry_, "m"};
  TargetLoads loads_{&metrics_};
};

TEST_F(TargetLoadsTest, GaugesAreSumsOverConnectedTargets) {
  EXPECT_EQ(Value("vllm:num_requests_running"), 0);
  EXPECT_EQ(Value("vllm:kv_cache_usage_perc"), 0);
  Up(1, 11);
  Up(2, 12);
  loads_.Report(1, Load(3));
  loads_.Report(2, Load(4));
  loads_.Report(2, Load(1));
  loads_.Report(3, Load(50));  // is not connected
  EXPECT_EQ(Value("vllm:num_requests_running"), 4);
  EXPECT_EQ(Value("vllm:num_requests_waiting"), 8);
  EXPECT_DOUBLE_EQ(Value("vllm:kv_cache_usage_perc"), 0.2);
  loads_.Down(1);
  EXPECT_EQ(Value("vllm:num_requests_running"), 1);
  EXPECT_DOUBLE_EQ(Value("vllm:kv_cache_usage_perc"), 0.1);
  loads_.Down(2);
  EXPECT_EQ(Value("vllm:num_requests_waiting"), 0);
  EXPECT_EQ(Value("vllm:kv_cache_usage_perc"), 0);
}

TEST_F(TargetLoadsTest, TheCacheIsThatOfAllTargets) {
  const auto info = [](int block_size, int blocks) {
    return "vllm:cache_config_info{block_size=\"" + std::to_string(block_size) +
           "\",engine=\"0\",num_gpu_blocks=\"" + std::to_string(blocks) + "\"} 1\n";
  };
  EXPECT_THAT(registry_.Render(), Not(HasSubstr("vllm:cache_config_info{")));
  Up(1, 11);
  Up(2, 12);
  loads_.Report(1, Load(0));
  EXPECT_THAT(registry_.Render(), HasSubstr(info(16, 100)));
  loads_.Report(2, {.kv_blocks = 100, .block_size = 32});
  EXPECT_THAT(registry_.Render(), HasSubstr(info(16, 300)));
  EXPECT_THAT(registry_.Render(), Not(HasSubstr(info(16, 100))));
  loads_.Down(1);
  EXPECT_THAT(registry_.Render(), HasSubstr(info(32, 100)));
  loads_.Down(2);
  EXPECT_THAT(registry_.Render(), Not(HasSubstr("vllm:cache_config_info{")));
}

TEST_F(TargetLoadsTest, CountersGrowByWhatTargetsCountWhileConnected) {
  const auto drafts = [this] { return Value("vllm:spec_decode_num_drafts_total"); };
  Up(1, 11);
  loads_.Report(1, Load(0, 1000));  // of the time before this gateway
  EXPECT_EQ(drafts(), 0);
  loads_.Report(1, Load(1, 1010));
  EXPECT_EQ(drafts(), 10);
  EXPECT_EQ(Value("vllm:spec_decode_num_draft_tokens_total"), 40);
  EXPECT_EQ(Value("vllm:spec_decode_num_accepted_tokens_total"), 10);
  const auto at = [this](const char* position) {
    return Value("vllm:spec_decode_num_accepted_tokens_per_pos_total",
                 std::string(R"({engine="0",model_name="m",position=")") + position + "\"}");
  };
  EXPECT_EQ(at("0"), 10);
  EXPECT_EQ(at("1"), 0);

  // The same process connects again: nothing counts twice.
  loads_.Down(1);
  Up(2, 11);
  loads_.Report(2, Load(0, 1015));
  EXPECT_EQ(drafts(), 15);
  // A new process at its place has totals of its own.
  loads_.Down(2);
  Up(3, 12);
  loads_.Report(3, Load(0, 0));
  loads_.Report(3, Load(0, 5));
  EXPECT_EQ(drafts(), 20);
}

}  // namespace
}  // namespace specfabric::gateway
