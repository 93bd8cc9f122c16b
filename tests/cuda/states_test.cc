// Hidden states on GPUs, beside the CPU's: what targets keep, and what EAGLE-3 drafters make of it.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/bfloat16.h"
#include "model/cuda/cuda_transformer.h"
#include "model/cuda/state_rows.h"
#include "tests/cuda/device.h"
#include "tests/cuda/drafter_states.h"
#include "tests/model/checkpoint_writer.h"
#include "tests/model/group.h"
#include "tests/model/passes.h"
#include "tests/model/played_processes.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::DeviceArray;
using base::cuda::Devices;
using base::cuda::DeviceTest;
using base::cuda::Emulated;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void Keep(TestGroup& group, int ranks, const std::vector<int32_t>& boundaries) {
  for (int rank = 0; rank < ranks; ++rank) {
    const absl::Status status = group.rank(rank).KeepStates(boundaries);
    ASSERT_TRUE(status.ok()) << status;
  }
}

using Bits = std::vector<uint16_t>;

Bits ToHost(RankModel& model, const std::vector<int32_t>& rows, const std::vector<int32_t>& columns,
            int32_t hidden) {
  Bits bits(rows.size() * columns.size() * hidden);
  const StateCopy copy = {.rows = rows, .columns = columns, .to = bits.data()};
  const absl::Status status = model.CopyStates({&copy, 1});
  EXPECT_TRUE(status.ok()) << status;
  return bits;
}

Bits AllStates(TestGroup& group, const Batch& batch, size_t boundaries, int rank = 0) {
  return ToHost(group.rank(rank), Iota(0, batch.rows()), Iota(0, static_cast<int>(boundaries)),
                group.config().hidden);
}

// Rounding may go the other way where the values themselves differ a little.
void ExpectClose(const Bits& got, const Bits& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double a = base::WidenBFloat16(got[i]), b = base::WidenBFloat16(want[i]);
    ASSERT_LE(std::abs(a - b), tolerance + std::abs(b) / 128) << i;
  }
}

Batch ChainAndTree() {
  Batch batch;
  AddChain(&batch, RandomTokens(9, 1), 0, Iota(0, 3));
  AddTree(&batch, RandomTokens(6, 2), {-1, 0, 0, 1, 2, 2}, 0, Iota(10, 2));
  batch.logit_rows = {0, 8, 11, 14};
  return batch;
}

class CudaStatesTest : public DeviceTest, public ::testing::WithParamInterface<DataType> {};

TEST_P(CudaStatesTest, AreTheCpusAndChangeNoLogit) {
  ModelConfig config = OddConfig();
  config.heads = 8;
  config.intermediate = 4 * 19;
  const TempDir dir;
  WriteCheckpoint(dir.path(), config, 1);
  const Batch batch = ChainAndTree();
  Batch silent = batch;
  silent.logit_rows.clear();
  TestGroup cpu = LoadOrDie(dir.path(), Options(GetParam()));
  for (int ranks : {1, 2}) {
    if (ranks > Devices()) continue;
    TestGroup device = OnDevice(dir.path(), CudaOptions(GetParam()), ranks);
    const LogitRows want = Logits(device, batch);
    for (const std::vector<int32_t>& boundaries : {std::vector<int32_t>{1}, {3, 0, 2}}) {
      Keep(device, ranks, boundaries);
      Keep(cpu, 1, boundaries);
      EXPECT_EQ(Logits(device, batch), want);
      Logits(cpu, batch);
      const Bits states = AllStates(device, batch, boundaries.size());
      ExpectClose(states, AllStates(cpu, batch, boundaries.size()), Tolerance(GetParam()));
      for (int rank = 1; rank < ranks; ++rank) {
        EXPECT_EQ(AllStates(device, batch, boundaries.size(), rank), states);
      }
      EXPECT_TRUE(Logits(device, silent).empty());
      EXPECT_EQ(AllStates(device, batch, boundaries.size()), states) << "without logits";
    }
    Keep(device, ranks, {});
    EXPECT_EQ(Logits(device, batch), want);
  }
}

// Passes of one size that are run as they are, captured and replayed, while what is kept changes.
TEST_P(CudaStatesTest, GraphsChangeNothing) {
  if (GetParam() == DataType::kBFloat16) GTEST_SKIP() << "what a graph holds has no type";
  ModelConfig config = OddConfig();
  config.layers = 1;
  const TempDir dir;
  WriteCheckpoint(dir.path(), config, 2);
  RankOptions options = CudaOptions(GetParam());
  TestGroup plain = OnDevice(dir.path(), options);
  options.cuda_graphs = true;
  TestGroup graphs = OnDevice(dir.path(), options);
  int32_t length = 0;
  for (const std::vector<int32_t>& boundaries : {std::vector<int32_t>{}, {0}, {1, 0}, {1}, {}}) {
    Keep(plain, 1, boundaries);
    Keep(graphs, 1, boundaries);
    for (int step = 0; step < 3; ++step) {
      Batch batch;
      AddChain(&batch, RandomTokens(3, length), length, Iota(0, 16));
      batch.logit_rows = {2};
      EXPECT_EQ(Logits(graphs, batch), Logits(plain, batch));
      EXPECT_EQ(AllStates(graphs, batch, boundaries.size()),
                AllStates(plain, batch, boundaries.size()));
      length += 3;
    }
  }
}

// Of rows and boundaries in any order, to the device's memory and to the host's at once.
TEST_P(CudaStatesTest, CopiesWhatIsAskedFor) {
  for (const int32_t hidden : {72, 39}) {  // in fours, and not
    ModelConfig config = OddConfig();
    config.layers = 2;
    config.hidden = hidden;
    const TempDir dir;
    WriteCheckpoint(dir.path(), config, 3);
    TestGroup device = OnDevice(dir.path(), CudaOptions(GetParam()));
    Keep(device, 1, {2, 0, 1});
    const Batch batch = ChainAndTree();
    Logits(device, batch);
    const Bits all = AllStates(device, batch, 3);
    const std::vector<std::vector<int32_t>> rows = {{14, 3, 3}, {7}, {}, {0, 12}};
    const std::vector<std::vector<int32_t>> columns = {{1, 0}, {2}, {0}, {0, 1, 2}};
    std::vector<DeviceArray<uint16_t>> there;
    std::vector<Bits> here(rows.size());
    std::vector<StateCopy> copies;
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t size = rows[i].size() * columns[i].size() * hidden;
      here[i].resize(size);
      there.emplace_back(Bits(size));
      copies.push_back({.rows = rows[i], .columns = columns[i], .to = here[i].data()});
      copies.push_back(
          {.rows = rows[i], .columns = columns[i], .to = there[i].data(), .on_device = true});
    }
    const absl::Status copied = device.rank(0).CopyStates(copies);
    ASSERT_TRUE(copied.ok()) << copied;
    for (size_t i = 0; i < rows.size(); ++i) {
      Bits want;
      for (int32_t row : rows[i]) {
        for (int32_t column : columns[i]) {
          const auto from = all.begin() + (row * 3 + column) * hidden;
          want.insert(want.end(), from, from + hidden);
        }
      }
      EXPECT_EQ(here[i], want);
      EXPECT_EQ(there[i].Read(), want);
    }
  }
}

// One of what is optional, whose head has a part of the vocabulary; DeepSpec's layout; one that
// hands on what is normed; and one whose layers attend within windows.
std::vector<ModelConfig> DrafterConfigs() {
  ModelConfig part = OddDrafterConfig();
  part.qkv_bias = part.output_bias = true;
  part.states->norm_before_residual = part.states->fc_bias = part.states->norm_before_fc = true;
  ModelConfig deep = OddDrafterConfig();
  deep.architecture = "Qwen3Eagle3Model";
  deep.qk_norm = true;
  deep.hidden = 48;
  deep.head_dim = 8;
  deep.states->layers = {1, 2, 3, 4, 5};
  deep.states->target_hidden = 40;
  deep.states->draft_vocabulary = deep.vocabulary;
  ModelConfig normed = OddDrafterConfig();
  normed.layers = 2;
  normed.states->norm_output = normed.states->fc_norm = true;
  ModelConfig windows = OddDrafterConfig();
  windows.layers = 3;
  windows.states->windows = {4, 0, 4};
  return {part, deep, normed, windows};
}

// With another value for what the head never scores, which is minus infinity on CPUs.
LogitRows Scored(LogitRows rows, float never) {
  for (std::vector<float>& row : rows) std::replace(row.begin(), row.end(), never, -1e6f);
  return rows;
}

// A prompt, then a tree of two levels, of which the second takes what the first hands on.
TEST_P(CudaStatesTest, DraftersAreTheCpus) {
  const double tolerance = Tolerance(GetParam());
  for (const ModelConfig& config : DrafterConfigs()) {
    const TempDir dir;
    WriteCheckpoint(dir.path(), config, 4);
    RankOptions options = CudaOptions(GetParam());
    TestGroup cpu = LoadOrDie(dir.path(), options);
    ASSERT_EQ(cpu.config().states->windows, config.states->windows);
    TestGroup device = OnDevice(dir.path(), options);
    options.cuda_graphs = true;
    TestGroup graphs = OnDevice(dir.path(), options);
    const auto expect_close = [&](const Batch& batch) {
      const LogitRows logits = Logits(device, batch);
      EXPECT_LT(MaxDifference(Scored(logits, kNeverScored), Scored(Logits(cpu, batch), -kInfinity)),
                tolerance);
      EXPECT_LT(MaxDifference(NextStates(device), NextStates(cpu)), tolerance);
      EXPECT_EQ(Logits(graphs, batch), logits);
      EXPECT_EQ(NextStates(graphs), NextStates(device));
    };
    const std::vector<float> states = RandomStates(7, StateWidth(config), 6);
    const LogitRows fused = Fused(cpu.rank(0), states, 7);
    EXPECT_LT(MaxDifference(Fused(device.rank(0), states, 7), fused), tolerance);
    Batch prompt;
    AddChain(&prompt, RandomTokens(7, 7), 0, Iota(0, 3));
    prompt.logit_rows = {6};
    prompt.states = fused[0];
    expect_close(prompt);
    const std::vector<float> root = NextStates(cpu)[0];
    for (int step = 0; step < 3; ++step) {  // as it is, captured, replayed
      Batch tree;
      AddTree(&tree, RandomTokens(3, 8 + step), {-1, 0, 0}, 7, Iota(0, 3));
      for (int node = 0; node < 3; ++node) {
        tree.states.insert(tree.states.end(), root.begin(), root.end());
      }
      tree.logit_rows = {1, 2};
      expect_close(tree);
    }
    Batch silent = prompt;
    silent.logit_rows.clear();
    EXPECT_TRUE(Logits(device, silent).empty());
    EXPECT_TRUE(device.rank(0).next_states().empty());
  }
}

TEST_P(CudaStatesTest, FusesWhatLiesInTheDevicesMemory) {
  for (const ModelConfig& config : DrafterConfigs()) {
    const TempDir dir;
    WriteCheckpoint(dir.path(), config, 4);
    TestGroup group = OnDevice(dir.path(), CudaOptions(GetParam()));
    ExpectFusesDeviceStates(group.rank(0));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaStatesTest,
                         ::testing::Values(DataType::kFloat32, DataType::kBFloat16),
                         [](const auto& info) { return Name(info.param); });

// Ranks of other processes are not told what is kept.
TEST(CudaKeepStatesTest, RanksOfSeveralProcesses) {
  if (!Emulated()) GTEST_SKIP() << "two processes of this one would share GPUs";
  const TempDir dir;
  WriteCheckpoint(dir.path(), OddConfig(), 4);
  Batch batch;
  AddChain(&batch, RandomTokens(3, 8), 0, {3});
  RankOptions options = CudaOptions(DataType::kFloat32);
  TestGroup one = OnDevice(dir.path(), options, 2);
  Keep(one, 1, {1});
  const LogitRows want = Logits(one, batch);
  for (const bool graphs : {false, true}) {
    options.cuda_graphs = graphs;
    PlayedProcesses processes({1, 1});
    absl::StatusOr<TestGroup> group = TestGroup::Load(
        dir.path(), options, std::move(processes.communicators), CudaTransformer::Load);
    ASSERT_TRUE(group.ok()) << group.status();
    const absl::Status kept = group->rank(0).KeepStates({1});
    if (graphs) {
      EXPECT_EQ(kept.code(), absl::StatusCode::kUnimplemented);
      continue;
    }
    ASSERT_TRUE(kept.ok()) << kept;
    EXPECT_EQ(Logits(*group, batch), want);
    EXPECT_EQ(AllStates(*group, batch, 1), AllStates(one, batch, 1));
  }
}

TEST(CudaKeepStatesTest, WhatCannotBeIsOneClearLine) {
  if (Devices() < 2) GTEST_SKIP() << "two stages need two GPUs";
  const TempDir dir, drafter;
  WriteCheckpoint(dir.path(), OddConfig(), 3);
  WriteCheckpoint(drafter.path(), OddDrafterConfig(), 3);
  RankOptions options = CudaOptions(DataType::kFloat32);
  EXPECT_EQ(TestGroup::Load(drafter.path(), options, 2, CudaTransformer::Load).status().code(),
            absl::StatusCode::kInvalidArgument);
  TestGroup group = OnDevice(dir.path(), options);
  EXPECT_EQ(group.rank(0).KeepStates({0, 4}).code(), absl::StatusCode::kInvalidArgument);
  Batch batch = ChainAndTree();
  batch.states.resize(batch.rows() * 72);
  EXPECT_EQ(group.Forward(batch).status().code(), absl::StatusCode::kInvalidArgument);
  options.pipeline_stages = 2;
  TestGroup stages = OnDevice(dir.path(), options, 2);
  EXPECT_EQ(stages.rank(0).KeepStates({1}).code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace specfabric::model::cuda
