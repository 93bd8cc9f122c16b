// How a model starts on GPUs: the KV cache in the memory that is left, weights through pinned
// memory, and what is turned off where it does not work, on emulated GPUs with faults.

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "model/cuda/collectives.h"
#include "model/cuda/cuda_transformer.h"
#include "model/cuda/feature_checks.h"
#include "model/cuda/weight_upload.h"
#include "tests/cuda/device.h"
#include "tests/model/checkpoint_writer.h"
#include "tests/model/group.h"
#include "tests/model/passes.h"
#include "tests/model/played_processes.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::Check;
using base::cuda::Device;
using base::cuda::Devices;
using base::cuda::DeviceTest;
using base::cuda::Emulated;
using ::testing::HasSubstr;

constexpr size_t kMib = size_t{1} << 20;

// A variable of the environment that an emulated GPU obeys, while this lives.
class Fault {
 public:
  explicit Fault(const char* name, const std::string& value = "") : name_(name) {
    setenv(name, value.c_str(), /*overwrite=*/1);
  }
  ~Fault() { unsetenv(name_); }
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;

 private:
  const char* const name_;
};

// With heads that the kernels of flash_attention.h are of, for as many ranks as there are.
ModelConfig SmallConfig() {
  ModelConfig config = OddConfig();
  config.head_dim = 64;
  config.heads = config.kv_heads = 4;
  config.layers = 2;
  return config;
}

RankOptions Plain(DataType dtype = DataType::kBFloat16) {
  return {.device = DeviceKind::kCuda,
          .dtype = dtype,
          .kv_blocks = 32,
          .block_size = 4,
          .trial_budget = 0};
}

RankOptions WithAllFeatures(DataType dtype = DataType::kBFloat16) {
  RankOptions options = Plain(dtype);
  options.cuda_graphs = options.flash_attention = options.peer_sums = true;
  return options;
}

absl::StatusOr<TestGroup> Load(const std::string& dir, const RankOptions& options, int ranks = 1) {
  return TestGroup::Load(dir, options, ranks, CudaTransformer::Load);
}

LogitRows LogitsOfAText(TestGroup& group) {
  Batch batch;
  AddChain(&batch, RandomTokens(7, 1), 0, Iota(0, 3));
  return Logits(group, batch);
}

class StartTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!IsSkipped() && !Emulated()) GTEST_SKIP() << "memory and faults are those of emulated GPUs";
  }
};

TEST_F(StartTest, TheCacheTakesTheMemoryThatIsLeft) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), SmallConfig(), 1);
  const Fault size("EMULATED_GPU_BYTES", std::to_string(128 * kMib));
  for (const int ranks : {1, 2}) {
    RankOptions options = WithAllFeatures();
    options.kv_blocks = 0;
    auto group = Load(dir.path(), options, ranks);
    ASSERT_TRUE(group.ok()) << group.status();
    const int32_t blocks = group->rank(0).options().kv_blocks;
    EXPECT_GT(blocks, 1000);
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(group->rank(rank).options().kv_blocks, blocks);
      size_t free = 0, total = 0;
      Check(cudaSetDevice(rank), "device");
      Check(cudaMemGetInfo(&free, &total), "memory");
      const double limit = 0.9 * static_cast<double>(total);
      const auto used = static_cast<double>(total - free);
      EXPECT_LE(used, limit) << "rank " << rank;
      // What attention and a trial took anew makes some difference.
      EXPECT_GT(used, limit - 2.0 * kMib) << "rank " << rank;
    }
    // The last block is there, and what graphs and attention have kept of the trial does no harm.
    Batch batch;
    AddChain(&batch, RandomTokens(4, 2), 0, {blocks - 1});
    const LogitRows last = Logits(*group, batch);
    for (int pass = 0; pass < 3; ++pass) EXPECT_EQ(Logits(*group, batch), last);
    Check(cudaSetDevice(0), "device");
  }
}

TEST_F(StartTest, TheSmallestRankDecidesHowManyBlocks) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), SmallConfig(), 1);
  const Fault size("EMULATED_GPU_BYTES", std::to_string(128 * kMib));
  RankOptions options = Plain();
  options.kv_blocks = 0;
  int64_t block_bytes = 0;
  const auto blocks_of = [&] {
    auto group = Load(dir.path(), options, 2);
    EXPECT_TRUE(group.ok()) << group.status();
    if (!group.ok()) return 0;
    block_bytes = group->rank(0).KvBlockBytes();
    EXPECT_EQ(group->rank(0).options().kv_blocks, group->rank(1).options().kv_blocks);
    return group->rank(0).options().kv_blocks;
  };
  const int32_t before = blocks_of();
  Check(cudaSetDevice(1), "device");
  const base::cuda::DeviceArray<char> others(8 * kMib);
  Check(cudaSetDevice(0), "device");
  const int32_t after = blocks_of();
  ASSERT_GT(block_bytes, 0);
  EXPECT_NEAR(before - after, static_cast<double>(8 * kMib) / block_bytes, 1);
}

TEST_F(StartTest, AContextThatDoesNotFitIsRefusedOnAllRanks) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), SmallConfig(), 1);
  const Fault size("EMULATED_GPU_BYTES", std::to_string(128 * kMib));
  RankOptions options = Plain();
  options.kv_blocks = 0;
  options.kv_sizing.least = 1 << 20;
  for (const int ranks : {1, 2}) {
    auto group = Load(dir.path(), options, ranks);
    EXPECT_EQ(group.status().code(), absl::StatusCode::kResourceExhausted) << group.status();
    EXPECT_THAT(std::string(group.status().message()), HasSubstr("one whole context takes"));
  }
}

TEST_F(StartTest, MemoryThatIsGoneAfterAllMakesTheCacheSmaller) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), SmallConfig(), 1);
  const Fault size("EMULATED_GPU_BYTES", std::to_string(128 * kMib));
  RankOptions options = WithAllFeatures();
  options.kv_blocks = 0;
  auto whole = Load(dir.path(), options);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const int32_t blocks = whole->rank(0).options().kv_blocks;
  const LogitRows expected = LogitsOfAText(*whole);
  whole = absl::UnknownError("gone");
  const Fault taken("EMULATED_GPU_TAKEN_BYTES", std::to_string(16 * kMib));
  auto smaller = Load(dir.path(), options);
  ASSERT_TRUE(smaller.ok()) << smaller.status();
  EXPECT_EQ(smaller->rank(0).options().kv_blocks, blocks / 4 * 3);
  EXPECT_EQ(LogitsOfAText(*smaller), expected);
}

TEST_F(StartTest, WeightsThatDoNotFitAreAnError) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), SmallConfig(), 1);
  const Fault size("EMULATED_GPU_BYTES", std::to_string(kMib / 8));
  for (const int ranks : {1, 2}) {
    auto group = Load(dir.path(), WithAllFeatures(), ranks);
    EXPECT_EQ(group.status().code(), absl::StatusCode::kResourceExhausted) << group.status();
  }
}

TEST_F(StartTest, WhatWorksIsOn) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), SmallConfig(), 1);
  for (const int ranks : {1, 2}) {
    auto group = Load(dir.path(), WithAllFeatures(), ranks);
    ASSERT_TRUE(group.ok()) << group.status();
    for (int rank = 0; rank < ranks; ++rank) {
      const RankOptions& options = group->rank(rank).options();
      EXPECT_TRUE(options.cuda_graphs && options.flash_attention);
      EXPECT_EQ(options.peer_sums, ranks == 2) << "one rank has nothing to sum";
    }
  }
}

TEST_F(StartTest, AttentionWithoutKernelsFallsBackToThePlainOne) {
  const TempDir dir, odd;
  WriteCheckpoint(dir.path(), SmallConfig(), 1);
  ModelConfig heads_of_40 = SmallConfig();
  heads_of_40.head_dim = 40;
  WriteCheckpoint(odd.path(), heads_of_40, 1);
  for (const auto& [path, dtype] :
       {std::pair{dir.path(), DataType::kFloat32}, {odd.path(), DataType::kBFloat16}}) {
    auto plain = Load(path, Plain(dtype), 2);
    auto fallen_back = Load(path, WithAllFeatures(dtype), 2);
    ASSERT_TRUE(plain.ok()) << plain.status();
    ASSERT_TRUE(fallen_back.ok()) << fallen_back.status();
    for (int rank = 0; rank < 2; ++rank) {
      const RankOptions& options = fallen_back->rank(rank).options();
      EXPECT_FALSE(options.flash_attention);
      EXPECT_TRUE(options.cuda_graphs && options.peer_sums);
    }
    EXPECT_EQ(fallen_back->rank(0).NumericsFingerprint(), plain->rank(0).NumericsFingerprint());
    EXPECT_EQ(LogitsOfAText(*fallen_back), LogitsOfAText(*plain));
  }
}

TEST_F(StartTest, GraphsThatDoNotWorkAreOffAndChangeNothing) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), SmallConfig(), 1);
  RankOptions options = Plain();
  const std::pair<const char*, const char*> faults[] = {
      {"EMULATED_NO_GRAPHS", ""},         // no capture begins
      {"EMULATED_EMPTY_GRAPHS", ""},      // a launch does nothing
      {"EMULATED_MOST_GRAPH_NODES", "3"}  // the check passes, a model's pass does not
  };
  for (const int ranks : {1, 2}) {
    options.cuda_graphs = false;
    auto plain = Load(dir.path(), options, ranks);
    ASSERT_TRUE(plain.ok()) << plain.status();
    const LogitRows expected = LogitsOfAText(*plain);
    options.cuda_graphs = true;
    for (const auto& [name, value] : faults) {
      SCOPED_TRACE(testing::Message() << name << ", " << ranks << " ranks");
      const Fault fault(name, value);
      auto group = Load(dir.path(), options, ranks);
      ASSERT_TRUE(group.ok()) << group.status();
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_FALSE(group->rank(rank).options().cuda_graphs);
      }
      for (int pass = 0; pass < 3; ++pass) EXPECT_EQ(LogitsOfAText(*group), expected);
    }
  }
}

// The first rank's capture succeeds, and is not launched.
TEST_F(StartTest, WhatOneRankCannotDoNoneDoes) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), SmallConfig(), 1);
  auto plain = Load(dir.path(), Plain(), 2);
  ASSERT_TRUE(plain.ok()) << plain.status();
  for (const auto& [name, value] :
       {std::pair{"EMULATED_NO_GRAPHS", "1"}, {"EMULATED_MOST_GRAPH_NODES", "3@1"}}) {
    const Fault fault(name, value);
    RankOptions options = Plain();
    options.cuda_graphs = options.peer_sums = true;
    auto group = Load(dir.path(), options, 2);
    ASSERT_TRUE(group.ok()) << group.status();
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_FALSE(group->rank(rank).options().cuda_graphs) << name;
      EXPECT_TRUE(group->rank(rank).options().peer_sums) << name;
    }
    EXPECT_EQ(LogitsOfAText(*group), LogitsOfAText(*plain)) << name;
  }
}

TEST_F(StartTest, GpusApartSumByNcclToTheSameBits) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), SmallConfig(), 1);
  auto peers = Load(dir.path(), WithAllFeatures(), 2);
  ASSERT_TRUE(peers.ok()) << peers.status();
  const Fault apart("EMULATED_GPUS_APART");
  auto group = Load(dir.path(), WithAllFeatures(), 2);
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_FALSE(group->rank(0).options().peer_sums);
  EXPECT_TRUE(group->rank(0).options().cuda_graphs);
  EXPECT_EQ(LogitsOfAText(*group), LogitsOfAText(*peers));
}

// Both take the first GPU here, so each counts on memory that the other takes. The ranks of the
// other process may have been told otherwise about peer sums.
TEST_F(StartTest, ProcessesAgreeOnBlocksAndFeatures) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), SmallConfig(), 1);
  const Fault size("EMULATED_GPU_BYTES", std::to_string(160 * kMib));
  PlayedProcesses processes({1, 1});
  const RankLoader load = [](const std::string& folder, RankOptions options, Communicator* host) {
    options.peer_sums = host->rank() == 0;
    if (host->rank() == 1) options.kv_sizing.least = 1 << 30;  // the leader's counts
    return CudaTransformer::Load(folder, options, host);
  };
  RankOptions options = WithAllFeatures();
  options.kv_blocks = 0;
  auto group = TestGroup::Load(dir.path(), options, std::move(processes.communicators), load);
  ASSERT_TRUE(group.ok()) << group.status();
  const RankOptions &first = group->rank(0).options(), &second = group->rank(1).options();
  EXPECT_EQ(first.kv_blocks, second.kv_blocks);
  EXPECT_TRUE(first.cuda_graphs && second.cuda_graphs);
  EXPECT_FALSE(first.peer_sums || second.peer_sums);
}

// Each says something else.
TEST_F(StartTest, TheFirstRankThatFailedByItselfIsTheReason) {
  auto hosts = MakeThreadCommunicators(3);
  std::vector<FeatureState> states(3);
  std::vector<std::thread> threads;
  const absl::Status said[] = {absl::AbortedError("another"), absl::OkStatus(),
                               absl::InternalError("what is wrong")};
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      auto state = AgreeOnFeature(hosts[r].get(), said[r]);
      ASSERT_TRUE(state.ok()) << state.status();
      states[r] = *std::move(state);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const FeatureState& state : states) {
    EXPECT_FALSE(state.on);
    EXPECT_EQ(state.why, "rank 2: what is wrong");
  }
}

// Rows of several pieces, of a whole matrix, of two one after the other, and of columns.
class WeightUploadTest : public DeviceTest {};

TEST_F(WeightUploadTest, CopiesEveryRow) {
  const TempDir dir;
  constexpr int32_t kRows = 3001, kColumns = 2048;  // 12 MB in bfloat16
  std::vector<NamedTensor> tensors;
  std::mt19937 random(1);
  for (const char* name : {"a", "b"}) {
    NamedTensor tensor = {name, {kRows, kColumns}, std::vector<float>(size_t(kRows) * kColumns)};
    for (float& value : tensor.values) value = static_cast<float>(random() % 100'000) / 1000;
    tensors.push_back(std::move(tensor));
  }
  auto device = Device::Open(0);
  ASSERT_TRUE(device.ok()) << device.status();
  for (const DataType stored : {DataType::kBFloat16, DataType::kFloat32}) {
    WriteSafetensors(dir.File("model.safetensors"), tensors, stored);
    const auto checkpoint = Checkpoint::Open(dir.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const StoredTensor* const a = *checkpoint->Find("a", {kRows, kColumns});
    const StoredTensor* const b = *checkpoint->Find("b", {kRows, kColumns});
    StoredRows both(kColumns), columns(kColumns / 4);
    both.Add({a, kColumns, /*first_row=*/1, kRows - 1, /*first_column=*/0});
    both.Add({b, kColumns, 0, kRows, 0});
    columns.Add({b, kColumns, 0, kRows, kColumns / 2});
    WeightUpload upload(device->get(), DataType::kBFloat16);
    std::vector<std::pair<Matrix, StoredRows>> added;
    for (const StoredRows& rows : {both, columns}) {
      const LinearShape shape = {.outputs = rows.rows(), .inputs = rows.inputs()};
      auto matrix = upload.Add(shape, rows);
      ASSERT_TRUE(matrix.ok()) << matrix.status();
      added.emplace_back(*std::move(matrix), rows);
    }
    ASSERT_TRUE(upload.Run().ok());
    for (const auto& [matrix, rows] : added) {
      std::vector<std::byte> found(size_t(matrix.outputs) * matrix.inputs * sizeof(uint16_t)),
          expected(found.size());
      Check(cudaMemcpy(found.data(), matrix.weights->memory.As<void>(), found.size(),
                       cudaMemcpyDeviceToHost),
            "copy");
      rows.Read(0, rows.rows(), DataType::kBFloat16, expected.data());
      EXPECT_TRUE(found == expected);
    }
  }
}

}  // namespace
}  // namespace specfabric::model::cuda
