// Whole passes of small random checkpoints on GPUs, beside the CPU's: the same weights, batches and
// rounding, so that only the order of sums differs.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "model/cuda/cuda_transformer.h"
#include "sampling/sampling.h"
#include "tests/cuda/device.h"
#include "tests/model/checkpoint_writer.h"
#include "tests/model/group.h"
#include "tests/model/passes.h"
#include "tests/model/played_processes.h"
#include "verification/cuda/cuda_verifier.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::Devices;
using base::cuda::DeviceTest;
using base::cuda::Emulated;

RankOptions CudaOptions(DataType dtype, bool batch_invariant = true) {
  return {.dtype = dtype,
          .kv_blocks = 64,
          .block_size = 4,
          .batch_invariant = batch_invariant,
          .trial_budget = 0};
}

TestGroup LoadOrDie(absl::StatusOr<TestGroup> group) {
  EXPECT_TRUE(group.ok()) << group.status();
  return *std::move(group);
}
TestGroup OnDevice(const std::string& dir, const RankOptions& options, int ranks = 1) {
  return LoadOrDie(TestGroup::Load(dir, options, ranks, CudaTransformer::Load));
}
TestGroup OnCpu(const std::string& dir, const RankOptions& options) {
  return LoadOrDie(TestGroup::Load(dir, options, 1));
}

// Logits are about 2 in size, some 5.
double Tolerance(DataType dtype) { return dtype == DataType::kFloat32 ? 2e-4 : 0.25; }

// With every optional part: biases, norms by head, tied heads, odd sizes.
std::vector<ModelConfig> Configs() {
  const ModelConfig odd = OddConfig();
  ModelConfig biased = odd;
  biased.qkv_bias = biased.output_bias = biased.mlp_bias = true;
  biased.tied_embeddings = true;
  ModelConfig normed = odd;
  normed.architecture = "Qwen3ForCausalLM";
  normed.qk_norm = true;
  normed.head_dim = 40;
  return {odd, biased, normed};
}

// With heads that FlashInfer's kernels are of.
ModelConfig FlashConfig() {
  ModelConfig config = OddConfig();
  config.head_dim = 64;
  config.layers = 2;
  return config;
}

class CudaTransformerTest : public DeviceTest, public ::testing::WithParamInterface<DataType> {};

// A prompt, then a step of a tree and of a second chunk, of which not all logits are wanted.
TEST_P(CudaTransformerTest, AgreesWithTheCpu) {
  for (const ModelConfig& config : Configs()) {
    const TempDir dir;
    WriteCheckpoint(dir.path(), config, 1);
    TestGroup device = OnDevice(dir.path(), CudaOptions(GetParam()));
    TestGroup cpu = OnCpu(dir.path(), CudaOptions(GetParam()));

    Batch prompts;
    AddChain(&prompts, RandomTokens(11, 1), 0, Iota(0, 5));
    AddChain(&prompts, RandomTokens(6, 2), 0, {20, 12, 14});
    EXPECT_LT(MaxDifference(Logits(device, prompts), Logits(cpu, prompts)), Tolerance(GetParam()));

    Batch step;
    AddTree(&step, RandomTokens(6, 3), {-1, 0, 0, 1, 2, 2}, 11, Iota(0, 5));
    AddChain(&step, RandomTokens(3, 4), 6, {20, 12, 14});
    step.logit_rows = {0, 2, 5, 8};
    EXPECT_LT(MaxDifference(Logits(device, step), Logits(cpu, step)), Tolerance(GetParam()));
  }
}

// Accepted nodes of a tree become the text: their slots move, in order, some onto each other's.
TEST_P(CudaTransformerTest, MovesSlotsInOrder) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), OddConfig(), 2);
  TestGroup device = OnDevice(dir.path(), CudaOptions(GetParam()));
  TestGroup cpu = OnCpu(dir.path(), CudaOptions(GetParam()));
  const std::vector<KvMove> moves = {{6, 5}, {9, 6}, {6, 7}};
  for (TestGroup* group : {&device, &cpu}) {
    Batch tree;
    AddTree(&tree, RandomTokens(6, 3), {-1, 0, 0, 1, 2, 2}, 4, Iota(0, 3));
    tree.sequences[0].kv_len = 4;
    Batch prompt;
    AddChain(&prompt, RandomTokens(4, 5), 0, Iota(0, 3));
    Logits(*group, prompt);
    Logits(*group, tree);
    group->MoveKv(moves);
    group->MoveKv({{5, 10}});
  }
  Batch next;
  AddChain(&next, RandomTokens(1, 6), 8, Iota(0, 3));
  EXPECT_LT(MaxDifference(Logits(device, next), Logits(cpu, next)), Tolerance(GetParam()));
}

TEST_P(CudaTransformerTest, ARowsBitsDoNotDependOnTheOthers) {
  ModelConfig config = OddConfig();
  config.layers = 1;  // emulated attention over so many rows takes its time
  const TempDir dir;
  WriteCheckpoint(dir.path(), config, 3);
  TestGroup device = OnDevice(dir.path(), CudaOptions(GetParam()));
  const std::vector<int32_t> text = RandomTokens(70, 7);
  Batch whole;
  AddChain(&whole, text, 0, Iota(0, 20));
  const LogitRows expected = Logits(device, whole);
  // A row alone reads what rows before it wrote as parts of a large batch.
  for (int i : {0, 1, 37, 69}) {
    Batch one;
    AddChain(&one, {text[i]}, i, Iota(0, 20));
    EXPECT_EQ(Logits(device, one)[0], expected[i]) << i;
  }
}

TEST_P(CudaTransformerTest, RanksChangeLittle) {
  if (Devices() < 2) GTEST_SKIP() << "two ranks need two GPUs";
  ModelConfig config = OddConfig();
  config.heads = 8;
  config.kv_heads = 4;
  config.intermediate = 4 * 19;
  const TempDir dir;
  WriteCheckpoint(dir.path(), config, 4);
  TestGroup cpu = OnCpu(dir.path(), CudaOptions(GetParam()));
  Batch batch;
  AddChain(&batch, RandomTokens(11, 8), 0, Iota(3, 3));
  const LogitRows expected = Logits(cpu, batch);
  for (bool batch_invariant : {true, false}) {
    for (int ranks : {2, 4}) {
      if (ranks > Devices()) continue;
      TestGroup device = OnDevice(dir.path(), CudaOptions(GetParam(), batch_invariant), ranks);
      EXPECT_LT(MaxDifference(Logits(device, batch), expected), Tolerance(GetParam()));
    }
  }
}

// Passes in any order of sizes, so that each is run as it is, captured and replayed, and between
// them some that no graph is for.
TEST_P(CudaTransformerTest, GraphsChangeNothing) {
  const TempDir dir;
  ModelConfig config = Configs()[1];
  config.layers = 2;
  WriteCheckpoint(dir.path(), config, 4);
  for (const GroupShape& shape : {GroupShape{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
    if (shape.ranks() > Devices()) continue;
    // For the emulator's sake: what a graph holds does not depend on the type.
    if (shape.ranks() == 2 && GetParam() == DataType::kBFloat16) continue;
    SCOPED_TRACE(testing::Message() << shape.tensor_parallel << " x " << shape.stages);
    RankOptions options = CudaOptions(GetParam());
    options.kv_blocks = 80;
    options.pipeline_stages = shape.stages;
    TestGroup plain = OnDevice(dir.path(), options, shape.ranks());
    options.cuda_graphs = true;
    TestGroup graphs = OnDevice(dir.path(), options, shape.ranks());
    EXPECT_EQ(graphs.rank(0).NumericsFingerprint(), plain.rank(0).NumericsFingerprint());
    const auto expect_same = [&](const Batch& batch) {
      EXPECT_EQ(Logits(graphs, batch), Logits(plain, batch)) << batch.rows() << " rows";
    };
    int32_t length = 0;
    for (int32_t rows : {5, 1, 1, 3, 1, 4, 3}) {
      Batch chain;
      AddChain(&chain, RandomTokens(rows, length), length, Iota(0, 8));
      length += rows;
      if (rows == 4) chain.logit_rows = {3};
      expect_same(chain);
    }
    // More rows than graphs are for, which takes more memory; and none whose logits are wanted.
    Batch many, silent;
    for (int chain = 0; chain < kMaxPaddedRows / 4 + 1; ++chain) {
      AddChain(&many, RandomTokens(4, chain), 0, {chain});
    }
    many.logit_rows = {0, kMaxPaddedRows + 3};
    AddChain(&silent, RandomTokens(5, 8), 0, Iota(60, 2));
    silent.logit_rows.clear();
    if (shape.ranks() == 1) expect_same(many);
    expect_same(silent);
    for (int step = 0; step < 4; ++step) {
      Batch tree;
      AddTree(&tree, RandomTokens(6, step), {-1, 0, 0, 1, 2, 2}, length, Iota(0, 8));
      AddTree(&tree, RandomTokens(1, step), {-1}, step, Iota(10, 2));
      expect_same(tree);
      const std::vector<KvMove> moves = {{length + 2, length + 1}};
      graphs.MoveKv(moves);
      plain.MoveKv(moves);
      length += 2;
    }
  }
}

// Batches that grow in each of their sizes.
TEST_P(CudaTransformerTest, FlashAttentionIsAttention) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), FlashConfig(), 4);
  RankOptions options = CudaOptions(GetParam());
  options.flash_attention = true;
  if (GetParam() == DataType::kFloat32) GTEST_SKIP() << "its kernels are of bfloat16";
  TestGroup flash = OnDevice(dir.path(), options);
  TestGroup plain = OnDevice(dir.path(), CudaOptions(GetParam()));
  EXPECT_NE(flash.rank(0).NumericsFingerprint(), plain.rank(0).NumericsFingerprint());
  const auto expect_close = [&](const Batch& batch) {
    const LogitRows a = Logits(flash, batch), b = Logits(plain, batch);
    EXPECT_LT(MaxDifference(a, b), Tolerance(GetParam())) << batch.rows() << " rows";
    EXPECT_GT(MaxDifference(a, b), 0.0) << "one path, run twice?";
  };
  Batch one, prompts, step;
  AddChain(&one, RandomTokens(3, 1), 0, {0});
  expect_close(one);
  AddChain(&prompts, RandomTokens(13, 2), 0, Iota(0, 5));
  AddChain(&prompts, RandomTokens(6, 3), 0, {20, 12, 14});
  expect_close(prompts);
  AddTree(&step, RandomTokens(6, 4), {-1, 0, 0, 1, 2, 2}, 13, Iota(0, 5));
  AddTree(&step, RandomTokens(3, 5), {-1, 0, 0}, 6, {20, 12, 14});
  AddChain(&step, RandomTokens(2, 6), 0, {30});
  step.logit_rows = {0, 4, 5, 8, 10};
  expect_close(step);
  expect_close(one);
}

// With either attention: a node has the logits of its path's tokens, one after the other.
TEST_P(CudaTransformerTest, ATreesPathHasTheBitsOfAChain) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), FlashConfig(), 4);
  const std::vector<int32_t> prompt = RandomTokens(70, 2), nodes = RandomTokens(6, 4);
  const auto prompt_length = static_cast<int32_t>(prompt.size());
  for (const bool flash : {false, true}) {
    if (flash && GetParam() == DataType::kFloat32) continue;
    RankOptions options = CudaOptions(GetParam());
    options.flash_attention = flash;
    TestGroup device = OnDevice(dir.path(), options);
    Batch before, tree;
    AddChain(&before, prompt, 0, Iota(0, 20));
    Logits(device, before);
    AddTree(&tree, nodes, {-1, 0, 0, 1, 2, 2}, prompt_length, Iota(0, 20));
    tree.logit_rows = {0, 1, 2, 3, 4, 5};
    const LogitRows of_nodes = Logits(device, tree);
    for (const std::vector<int>& path : {std::vector<int>{0, 1, 3}, {0, 2, 4}, {0, 2, 5}}) {
      std::vector<int32_t> tokens;
      for (int node : path) tokens.push_back(nodes[node]);
      Batch again, chain;
      AddChain(&again, prompt, 0, Iota(30, 20));
      Logits(device, again);
      AddChain(&chain, tokens, prompt_length, Iota(30, 20));
      chain.logit_rows = {0, 1, 2};
      const LogitRows of_chain = Logits(device, chain);
      for (size_t i = 0; i < path.size(); ++i) {
        EXPECT_EQ(of_chain[i], of_nodes[path[i]]) << "node " << path[i] << ", flash " << flash;
      }
    }
  }
}

// Texts that grow past what a graph was first made for, in passes of sizes that come again.
TEST_P(CudaTransformerTest, GraphsOfFlashAttentionChangeNothing) {
  if (GetParam() != DataType::kBFloat16) GTEST_SKIP() << "FlashInfer's kernels are of bfloat16";
  const TempDir dir;
  WriteCheckpoint(dir.path(), FlashConfig(), 4);
  RankOptions options = CudaOptions(GetParam());
  options.flash_attention = true;
  TestGroup plain = OnDevice(dir.path(), options);
  options.cuda_graphs = true;
  TestGroup graphs = OnDevice(dir.path(), options);
  const auto expect_same = [&](const Batch& batch) {
    EXPECT_EQ(Logits(graphs, batch), Logits(plain, batch)) << batch.rows() << " rows";
  };
  int32_t length = 0;
  for (int step = 0; step < 9; ++step) {
    const int32_t rows = step % 3 + 2;
    Batch batch;
    AddChain(&batch, RandomTokens(rows, step), length, Iota(0, 12));
    length += rows;
    AddTree(&batch, RandomTokens(4, step), {-1, 0, 0, 1}, step, Iota(20, 6));
    if (step == 5) AddChain(&batch, RandomTokens(70, 9), 0, Iota(30, 18));
    expect_same(batch);
  }
}

// Few rows, which go through the stages in turn, and so many that these work on parts at once.
TEST_P(CudaTransformerTest, StagesChangeLittle) {
  if (Devices() < 2) GTEST_SKIP() << "two stages need two GPUs";
  const TempDir dir;
  WriteCheckpoint(dir.path(), Configs()[1], 4);
  RankOptions options = CudaOptions(GetParam());
  TestGroup cpu = OnCpu(dir.path(), options);
  Batch prompts, step;
  AddChain(&prompts, RandomTokens(20, 8), 0, Iota(3, 7));
  AddTree(&prompts, RandomTokens(6, 9), {-1, 0, 0, 1, 2, 2}, 0, Iota(10, 2));
  AddChain(&prompts, RandomTokens(7, 10), 0, Iota(12, 2));
  std::erase_if(prompts.logit_rows, [](int32_t row) { return row < 9 || row % 3 == 0; });
  AddTree(&step, RandomTokens(3, 11), {-1, 0, 0}, 20, Iota(3, 7));
  const std::vector<KvMove> moves = {{3 * 4 + 19, 3 * 4 + 1}};
  const LogitRows of_prompts = Logits(cpu, prompts);
  cpu.MoveKv(moves);
  const LogitRows of_step = Logits(cpu, step);
  // What 33 rows are cut into: one part; four.
  for (const auto& [shape, part_rows] :
       {std::pair{GroupShape{1, 2}, 0}, {GroupShape{1, 3}, 8}, {GroupShape{2, 2}, 8}}) {
    if (shape.ranks() > Devices()) continue;
    options.pipeline_stages = shape.stages;
    options.micro_batch_rows = part_rows;
    TestGroup device = OnDevice(dir.path(), options, shape.ranks());
    EXPECT_LT(MaxDifference(Logits(device, prompts), of_prompts), Tolerance(GetParam()));
    device.MoveKv(moves);
    EXPECT_LT(MaxDifference(Logits(device, step), of_step), Tolerance(GetParam()));
    Batch silent = step;
    silent.logit_rows.clear();
    EXPECT_TRUE(Logits(device, silent).empty());
  }
}

// Ranks of two processes, whose GPUs are counted in each of them.
TEST_P(CudaTransformerTest, ProcessesChangeNothing) {
  if (!Emulated()) GTEST_SKIP() << "two processes of this one would share GPUs";
  const TempDir dir;
  WriteCheckpoint(dir.path(), OddConfig(), 4);
  Batch batch;
  AddChain(&batch, RandomTokens(11, 8), 0, Iota(3, 3));
  for (const auto& [batch_invariant, graphs] :
       {std::pair{true, false}, {false, false}, {true, true}}) {
    RankOptions options = CudaOptions(GetParam(), batch_invariant);
    options.cuda_graphs = graphs;
    for (const int here : {1, 2}) {
      TestGroup threads = OnDevice(dir.path(), options, 2 * here);
      PlayedProcesses processes({here, here});
      TestGroup group = LoadOrDie(TestGroup::Load(
          dir.path(), options, std::move(processes.communicators), CudaTransformer::Load));
      const int passes = graphs ? 3 : 1;  // as it is, captured, replayed
      for (int pass = 0; pass < passes; ++pass) {
        EXPECT_EQ(Logits(group, batch), Logits(threads, batch)) << 2 * here << " ranks";
      }
      for (int rank = 1; rank < 2 * here; ++rank) {
        EXPECT_EQ(group.rank(rank).NumericsFingerprint(), group.rank(0).NumericsFingerprint());
      }
    }
  }
}

TEST_P(CudaTransformerTest, ARankThatFailsToLoadFailsThemAll) {
  if (Devices() < 2) GTEST_SKIP() << "two ranks need two GPUs";
  const TempDir dir, broken;
  WriteCheckpoint(dir.path(), OddConfig(), 4);
  WriteCheckpoint(broken.path(), OddConfig(), 4);
  std::filesystem::remove(broken.File("model.safetensors"));
  absl::Status first, second;
  const RankLoader load = [&](const std::string&, const RankOptions& options, Communicator* host) {
    auto model =
        CudaTransformer::Load(host->rank() == 0 ? dir.path() : broken.path(), options, host);
    (host->rank() == 0 ? first : second) = model.status();
    return model;
  };
  EXPECT_FALSE(TestGroup::Load(dir.path(), CudaOptions(GetParam()), 2, load).ok());
  EXPECT_EQ(first.code(), absl::StatusCode::kAborted) << first;
  EXPECT_EQ(second.code(), absl::StatusCode::kNotFound) << second;
}

TEST_P(CudaTransformerTest, ALostProcessFailsTheLoading) {
  if (!Emulated()) GTEST_SKIP() << "two processes of this one would share GPUs";
  const TempDir dir;
  WriteCheckpoint(dir.path(), OddConfig(), 4);
  PlayedProcesses processes({1, 1});
  absl::Status first;
  const RankLoader load = [&](const std::string& model_dir, const RankOptions& options,
                              Communicator* host) -> absl::StatusOr<std::unique_ptr<RankModel>> {
    if (host->rank() == 1) {
      processes.point.End();
      return absl::UnavailableError("lost");
    }
    auto model = CudaTransformer::Load(model_dir, options, host);
    first = model.status();
    return model;
  };
  EXPECT_FALSE(
      TestGroup::Load(dir.path(), CudaOptions(GetParam()), std::move(processes.communicators), load)
          .ok());
  EXPECT_EQ(first.code(), absl::StatusCode::kAborted) << first;
}

TEST_P(CudaTransformerTest, ABatchWithoutLogitsWritesItsKeys) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), OddConfig(), 5);
  TestGroup device = OnDevice(dir.path(), CudaOptions(GetParam()));
  const std::vector<int32_t> text = RandomTokens(9, 9);
  Batch whole;
  AddChain(&whole, text, 0, Iota(0, 3));
  const LogitRows expected = Logits(device, whole);
  Batch silent;
  AddChain(&silent, {text.begin(), text.end() - 1}, 0, Iota(10, 3));
  silent.logit_rows.clear();
  EXPECT_TRUE(Logits(device, silent).empty());
  Batch last;
  AddChain(&last, {text.back()}, 8, Iota(10, 3));
  EXPECT_EQ(Logits(device, last)[0], expected[8]);
}

// What is fetched and decided where the logits are is what all of their rows say.
TEST_P(CudaTransformerTest, GivesTheRowsAndDecidesTheTreesThatAreAskedFor) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), OddConfig(), 7);
  TestGroup device = OnDevice(dir.path(), CudaOptions(GetParam()));
  Batch step;
  AddChain(&step, RandomTokens(3, 1), 0, Iota(0, 5));
  AddTree(&step, RandomTokens(4, 2), {-1, 0, 0, 2}, 0, Iota(8, 3));
  const LogitRows rows = Logits(device, step);
  const absl::StatusOr<LogitShard> shard = device.rank(0).Forward(step);
  ASSERT_TRUE(shard.ok()) << shard.status();

  const std::vector<int32_t> wanted = {1, 4, 5, 0};
  const absl::StatusOr<const float*> fetched = shard->device->Fetch(wanted);
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  for (size_t i = 0; i < wanted.size(); ++i) {
    const float* const row = *fetched + i * shard->width;
    EXPECT_EQ(std::vector<float>(row, row + shard->width), rows[wanted[i]]) << i;
  }

  constexpr int kRoot = 3;  // its row
  const auto best = [&](int row) { return sampling::PerturbedArgMax(rows[row], {}, 0, 0).token; };
  const std::vector<int32_t> parents = {-1, 0, 0, 2};
  const std::vector<int32_t> tokens = {0, best(kRoot) + 1, best(kRoot), best(kRoot + 2)};
  const verification::DeviceTree tree = {
      .parents = parents, .tokens = tokens, .first_logit = kRoot, .sampling = {.temperature = 0}};
  speculation::Accepted accepted;
  ASSERT_TRUE(verification::cuda::CudaVerifier(device.rank(0).device())
                  .Verify(shard->device->matrix(), {&tree, 1}, absl::MakeSpan(&accepted, 1))
                  .ok());
  EXPECT_EQ(accepted.path, (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(accepted.tokens, (std::vector<int32_t>{best(kRoot), best(kRoot + 2), best(kRoot + 3)}));
}

TEST_P(CudaTransformerTest, WithoutBatchInvarianceNoFingerprintIsTheSame) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), OddConfig(), 6);
  const auto fingerprint = [&](bool batch_invariant) {
    return OnDevice(dir.path(), CudaOptions(GetParam(), batch_invariant))
        .rank(0)
        .NumericsFingerprint();
  };
  EXPECT_EQ(fingerprint(true), fingerprint(true));
  EXPECT_NE(fingerprint(false), fingerprint(false));
}

TEST_P(CudaTransformerTest, RefusesBatchesThatCannotBe) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), OddConfig(), 6);
  TestGroup device = OnDevice(dir.path(), CudaOptions(GetParam()));
  Batch batch;
  AddChain(&batch, {1, 2, 3}, 0, {64});
  EXPECT_EQ(device.Forward(batch).status().code(), absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaTransformerTest,
                         ::testing::Values(DataType::kFloat32, DataType::kBFloat16),
                         [](const auto& info) { return Name(info.param); });

}  // namespace
}  // namespace specfabric::model::cuda
