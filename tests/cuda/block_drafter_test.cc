// Drafters on GPUs that predict a block in one pass over their target's hidden states, beside the
// CPU's.

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "model/cuda/state_rows.h"
#include "tests/cuda/device.h"
#include "tests/cuda/drafter_states.h"
#include "tests/model/checkpoint_writer.h"
#include "tests/model/group.h"
#include "tests/model/passes.h"

namespace specfabric::model::cuda {
namespace {

using base::cuda::DeviceTest;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// With another value for what the head never scores, which is minus infinity on CPUs.
LogitRows Scored(LogitRows rows) {
  for (std::vector<float>& row : rows) {
    std::replace(row.begin(), row.end(), kNeverScored, -1e6f);
    std::replace(row.begin(), row.end(), -kInfinity, -1e6f);
  }
  return rows;
}

// The sequences of these tests, whose blocks do not lie in order: how many positions they have, and
// where their keys are.
struct Text {
  int32_t length;
  std::vector<int32_t> blocks;
};
using Texts = std::vector<Text>;
Texts ShortTexts() { return {{9, {5, 0, 7, 2}}, {6, {1, 9, 3, 8}}, {1, {4, 6}}}; }

// The fused states of the texts' positions, [texts][positions][hidden].
std::vector<std::vector<float>> RandomFused(RankModel& model, const Texts& texts) {
  std::vector<std::vector<float>> fused;
  for (const Text& text : texts) {
    const std::vector<float> states =
        RandomStates(text.length, StateWidth(model.config()), text.length);
    fused.push_back(Fused(model, states, text.length).front());
  }
  return fused;
}

// Positions [first, end) of each text, as far as it has them, with their fused states: [texts]
// [positions][hidden].
Batch ContextOf(const Texts& texts, const std::vector<std::vector<float>>& fused, int32_t hidden,
                int32_t first, int32_t end) {
  Batch batch;
  for (size_t i = 0; i < texts.size(); ++i) {
    const Text& text = texts[i];
    const int32_t last = std::min(end, text.length);
    if (first >= last) continue;
    AddChain(&batch, std::vector<int32_t>(last - first, 0), first, text.blocks);
    batch.states.insert(batch.states.end(), fused[i].begin() + first * hidden,
                        fused[i].begin() + last * hidden);
  }
  return batch;
}

void Write(TestGroup& group, const Batch& batch) {
  const absl::Status status = group.rank(0).WriteContext(batch);
  ASSERT_TRUE(status.ok()) << status;
}

// A block behind each text.
Batch BlocksOf(const Texts& texts, const ModelConfig& config, uint32_t seed) {
  const BlockDrafter& block = *config.states->block;
  Batch batch;
  for (const Text& text : texts) {
    std::vector<int32_t> tokens(block.rows, config.mask_token);
    tokens[0] = RandomTokens(1, seed++)[0];
    AddChain(&batch, tokens, text.length, text.blocks);
    batch.sequences.back().block = true;
  }
  batch.logit_rows.clear();
  for (int32_t row = 0; row < batch.rows(); ++row) {
    if (block.from_anchor || row % block.rows > 0) batch.logit_rows.push_back(row);
  }
  return batch;
}

struct Continued {
  LogitRows logits, states, confidences;
};

Continued Continue(TestGroup& group, const std::vector<BlockNode>& nodes,
                   const std::vector<float>& states) {
  RankModel& model = group.rank(0);
  absl::StatusOr<LogitShard> shard = model.ContinueBlock(nodes, states);
  EXPECT_TRUE(shard.ok()) << shard.status();
  EXPECT_TRUE(FetchRows(&*shard).ok());
  Continued continued;
  for (int row = 0; row < shard->rows; ++row) {
    continued.logits.emplace_back(shard->row(row).begin(), shard->row(row).end());
  }
  continued.states = {{model.next_states().begin(), model.next_states().end()}};
  continued.confidences = {{model.confidences().begin(), model.confidences().end()}};
  return continued;
}

// All kinds of heads; the whole vocabulary and a part of it; with biases, and heads of 64, whose
// keys are placed by another kernel; windows to both sides.
std::vector<ModelConfig> Configs() {
  ModelConfig flash = OddBlockConfig(MarkovKind::kNone);
  ModelConfig biased = OddBlockConfig(MarkovKind::kNone);
  biased.layers = 1;
  biased.qkv_bias = biased.output_bias = true;
  biased.heads = 4;
  biased.kv_heads = 2;
  biased.head_dim = 64;
  biased.states->draft_vocabulary = biased.vocabulary;
  biased.states->windows = {3};
  biased.states->block->causal = {false};
  ModelConfig vanilla = OddBlockConfig(MarkovKind::kVanilla);
  vanilla.states->block->confidence = vanilla.states->block->confidence_reads_markov = true;
  ModelConfig gated = OddBlockConfig(MarkovKind::kGated);
  gated.states->block->from_anchor = false;
  gated.states->block->confidence = true;
  gated.states->draft_vocabulary = gated.vocabulary;
  ModelConfig recurrent = OddBlockConfig(MarkovKind::kRecurrent);
  recurrent.states->windows.clear();
  recurrent.states->block->causal.assign(3, false);
  ModelConfig confident = OddBlockConfig(MarkovKind::kRecurrent);
  confident.states->block->confidence = confident.states->block->confidence_reads_markov = true;
  ModelConfig unmarked = OddBlockConfig(MarkovKind::kVanilla);  // a confidence head alone
  unmarked.states->block->markov = MarkovKind::kNone;
  unmarked.states->block->markov_rank = 0;
  unmarked.states->block->confidence = true;
  return {flash, biased, vanilla, gated, recurrent, confident, unmarked};
}

class CudaBlockTest : public DeviceTest, public ::testing::WithParamInterface<DataType> {};

TEST_P(CudaBlockTest, BlocksAreTheCpus) {
  const double tolerance = Tolerance(GetParam());
  for (const ModelConfig& config : Configs()) {
    SCOPED_TRACE(config.architecture);
    const TempDir dir;
    WriteCheckpoint(dir.path(), config, 4);
    RankOptions options = CudaOptions(GetParam());
    TestGroup cpu = LoadOrDie(dir.path(), options);
    ASSERT_EQ(cpu.config().states->windows, config.states->windows);
    ASSERT_EQ(cpu.config().states->block->causal, config.states->block->causal);
    ASSERT_EQ(cpu.config().states->block->markov, config.states->block->markov);
    ASSERT_EQ(cpu.config().states->block->from_anchor, config.states->block->from_anchor);
    TestGroup device = OnDevice(dir.path(), options);
    options.cuda_graphs = true;
    TestGroup graphs = OnDevice(dir.path(), options);
    const Texts texts = ShortTexts();
    const std::vector<std::vector<float>> fused = RandomFused(cpu.rank(0), texts);
    EXPECT_LT(MaxDifference(RandomFused(device.rank(0), texts), fused), tolerance);
    const auto context = [&](int32_t first, int32_t end) {
      return ContextOf(texts, fused, config.hidden, first, end);
    };
    Write(cpu, context(0, 9));
    Write(device, context(0, 9));
    for (const auto& [first, end] : {std::pair{0, 4}, {4, 5}, {5, 9}}) {
      Write(graphs, context(first, end));
    }
    // Each as it is, captured and replayed. Nothing remains of a block.
    for (uint32_t step = 0; step < 3; ++step) {
      const Batch blocks = BlocksOf(texts, config, 10 * step);
      const LogitRows logits = Logits(device, blocks);
      EXPECT_LT(MaxDifference(Scored(logits), Scored(Logits(cpu, blocks))), tolerance);
      EXPECT_EQ(Logits(graphs, blocks), logits);
    }
    EXPECT_TRUE(device.rank(0).next_states().empty());
  }
}

// Of several nodes a row, as of a tree's level, whose states come from the nodes before them.
TEST_P(CudaBlockTest, HeadsContinueBlocksAsTheCpus) {
  const double tolerance = Tolerance(GetParam());
  for (const ModelConfig& config : Configs()) {
    const BlockDrafter& block = *config.states->block;
    if (!block.sequential()) continue;
    SCOPED_TRACE(static_cast<int>(block.markov));
    const TempDir dir;
    WriteCheckpoint(dir.path(), config, 5);
    RankOptions options = CudaOptions(GetParam());
    TestGroup cpu = LoadOrDie(dir.path(), options);
    TestGroup device = OnDevice(dir.path(), options);
    const Texts texts = ShortTexts();
    const std::vector<std::vector<float>> fused = RandomFused(cpu.rank(0), texts);
    for (TestGroup* group : {&cpu, &device}) {
      Write(*group, ContextOf(texts, fused, config.hidden, 0, 9));
      Logits(*group, BlocksOf(texts, config, 3));
    }
    const size_t rank = block.markov == MarkovKind::kRecurrent ? block.markov_rank : 0;
    std::vector<float> states(2 * rank, 0.0f);
    std::vector<BlockNode> nodes = {{0, 17}, {block.levels(), 100}};
    for (const std::vector<BlockNode>& next :
         {std::vector<BlockNode>{{1, 3}, {1, 0}, {block.levels() + 1, 99}}, {}}) {
      const Continued want = Continue(cpu, nodes, states), got = Continue(device, nodes, states);
      ASSERT_EQ(want.logits.size(), nodes.size());
      EXPECT_LT(MaxDifference(Scored(got.logits), Scored(want.logits)), tolerance);
      EXPECT_LT(MaxDifference(got.states, want.states), tolerance);
      EXPECT_LT(MaxDifference(got.confidences, want.confidences), tolerance);
      ASSERT_EQ(want.states[0].size(), nodes.size() * rank);
      ASSERT_EQ(want.confidences[0].size(), block.confidence ? nodes.size() : 0);
      // A node alone has the bits that it has beside others.
      const std::vector<float> last_state(states.end() - rank, states.end());
      EXPECT_EQ(Continue(device, {nodes.back()}, last_state).logits[0], got.logits.back());
      if (next.empty()) break;
      const auto state_of = [&](size_t node) {
        return absl::MakeConstSpan(want.states[0]).subspan(node * rank, rank);
      };
      std::vector<float> handed_on;
      for (const size_t parent : {0, 0, 1}) {
        handed_on.insert(handed_on.end(), state_of(parent).begin(), state_of(parent).end());
      }
      nodes = next;
      states = handed_on;
    }
    EXPECT_TRUE(Continue(device, {}, {}).logits.empty());
  }
}

TEST_P(CudaBlockTest, FusesWhatLiesInTheDevicesMemory) {
  const TempDir dir;
  const ModelConfig config = OddBlockConfig(MarkovKind::kNone);
  WriteCheckpoint(dir.path(), config, 4);
  TestGroup group = OnDevice(dir.path(), CudaOptions(GetParam()));
  ExpectFusesDeviceStates(group.rank(0));
}

INSTANTIATE_TEST_SUITE_P(Types, CudaBlockTest,
                         ::testing::Values(DataType::kFloat32, DataType::kBFloat16),
                         [](const auto& info) { return Name(info.param); });

class CudaBlockUseTest : public DeviceTest {};

// Where the kernels on tensor cores take a block's rows, beside a layer with a window: of texts
// that end within a block's first leaf of slots, and far behind it.
TEST_F(CudaBlockUseTest, FlashAttentionTakesBlocks) {
  ModelConfig config = OddBlockConfig(MarkovKind::kNone);
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 64;
  const TempDir dir, windows_dir;
  WriteCheckpoint(dir.path(), config, 4);
  RankOptions options = CudaOptions(DataType::kBFloat16);
  const Texts texts = {{5, {2, 0, 1}}, {130, Iota(20, 36)}, {62, Iota(3, 17)}};
  TestGroup cpu = LoadOrDie(dir.path(), options);
  options.flash_attention = true;
  TestGroup device = OnDevice(dir.path(), options);
  options.cuda_graphs = true;
  TestGroup graphs = OnDevice(dir.path(), options);
  ASSERT_TRUE(device.rank(0).options().flash_attention);
  const std::vector<std::vector<float>> fused = RandomFused(cpu.rank(0), texts);
  for (TestGroup* group : {&cpu, &device, &graphs}) {
    Write(*group, ContextOf(texts, fused, config.hidden, 0, 130));
  }
  for (uint32_t step = 0; step < 3; ++step) {
    const Batch blocks = BlocksOf(texts, config, 10 * step);
    const LogitRows logits = Logits(device, blocks);
    EXPECT_LT(MaxDifference(Scored(logits), Scored(Logits(cpu, blocks))), 0.25);
    EXPECT_EQ(Logits(graphs, blocks), logits);
  }
  config.states->windows.assign(3, 5);
  config.states->block->causal.assign(3, true);
  WriteCheckpoint(windows_dir.path(), config, 4);
  EXPECT_FALSE(OnDevice(windows_dir.path(), options).rank(0).options().flash_attention);
}

TEST_F(CudaBlockUseTest, WhatCannotBeIsOneClearLine) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kNever = absl::StatusCode::kFailedPrecondition;
  const RankOptions options = CudaOptions(DataType::kFloat32);
  const TempDir eagle_dir, flash_dir, spark_dir;
  WriteCheckpoint(eagle_dir.path(), OddDrafterConfig(), 1);
  WriteCheckpoint(flash_dir.path(), OddBlockConfig(MarkovKind::kNone), 1);
  WriteCheckpoint(spark_dir.path(), OddBlockConfig(MarkovKind::kRecurrent), 1);
  TestGroup eagle = OnDevice(eagle_dir.path(), options);
  TestGroup flash = OnDevice(flash_dir.path(), options);
  TestGroup spark = OnDevice(spark_dir.path(), options);
  Batch context;
  AddChain(&context, {1, 2}, 0, {0});
  context.logit_rows.clear();
  EXPECT_EQ(flash.rank(0).WriteContext(context).code(), kInvalid) << "without states";
  context.states.resize(2 * flash.config().hidden);
  EXPECT_TRUE(flash.rank(0).WriteContext(context).ok());
  EXPECT_EQ(flash.Forward(context).status().code(), kInvalid) << "with states";
  EXPECT_EQ(eagle.rank(0).WriteContext(context).code(), kNever);
  context.blocks = {64};
  EXPECT_EQ(flash.rank(0).WriteContext(context).code(), kInvalid) << "no such block";
  EXPECT_TRUE(flash.rank(0).WriteContext({}).ok());
  const BlockNode node;
  EXPECT_EQ(eagle.rank(0).ContinueBlock({node}, {}).status().code(), kNever);
  EXPECT_EQ(flash.rank(0).ContinueBlock({node}, {}).status().code(), kNever);
  EXPECT_EQ(spark.rank(0).ContinueBlock({node}, {}).status().code(), kInvalid);
  EXPECT_TRUE(flash.rank(0).confidences().empty());
}

}  // namespace
}  // namespace specfabric::model::cuda
