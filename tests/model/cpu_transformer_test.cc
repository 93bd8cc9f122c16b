// Whole forward passes of small random checkpoints.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "model/reference/linear.h"
#include "tests/model/checkpoint_writer.h"
#include "tests/model/group.h"
#include "tests/model/passes.h"

namespace specfabric::model {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<int32_t> Slice(const std::vector<int32_t>& v, size_t begin, size_t end) {
  return {v.begin() + begin, v.begin() + std::min(end, v.size())};
}

// The logits of a text, computed in chunks of the given length.
LogitRows InChunks(TestGroup& group, const std::vector<int32_t>& text, size_t chunk,
                   const std::vector<int32_t>& blocks) {
  LogitRows all;
  for (size_t done = 0; done < text.size(); done += chunk) {
    Batch batch;
    AddChain(&batch, Slice(text, done, done + chunk), static_cast<int32_t>(done), blocks);
    const LogitRows rows = Logits(group, batch);
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

// Models with every optional part: biases, per-head norms, tied heads, odd sizes.
std::vector<ModelConfig> Configs() {
  const ModelConfig odd = OddConfig();
  ModelConfig biased = odd;
  biased.qkv_bias = biased.output_bias = biased.mlp_bias = true;
  biased.tied_embeddings = true;
  ModelConfig qwen2 = odd;
  qwen2.architecture = "Qwen2ForCausalLM";
  qwen2.qkv_bias = true;
  qwen2.head_dim = 24;
  ModelConfig qwen3 = odd;
  qwen3.architecture = "Qwen3ForCausalLM";
  qwen3.qk_norm = true;
  qwen3.head_dim = 40;
  qwen3.heads = 8;
  qwen3.kv_heads = 8;
  qwen3.intermediate = 8 * 19;  // odd parts
  return {odd, biased, qwen2, qwen3};
}

class CpuTransformerTest : public ::testing::TestWithParam<DataType> {};

TEST_P(CpuTransformerTest, AgreesWithTheReferencePath) {
  if (!reference::IsBuilt()) GTEST_SKIP() << "built without libtorch";
  for (const ModelConfig& config : Configs()) {
    const TempDir dir;
    WriteCheckpoint(dir.path(), config, 1);
    RankOptions options = Options(GetParam());
    TestGroup fast = LoadOrDie(dir.path(), options);
    options.reference = true;
    TestGroup reference = LoadOrDie(dir.path(), options);
    Batch batch;
    AddChain(&batch, RandomTokens(23, 1), 0, Iota(0, 6));
    AddTree(&batch, RandomTokens(6, 2), {-1, 0, 0, 1, 2, 2}, 0, Iota(10, 2));
    const LogitRows a = Logits(fast, batch), b = Logits(reference, batch);
    // Logits have a size of about 2; bfloat16 keeps eight bits of every product's inputs.
    EXPECT_LT(MaxDifference(a, b), GetParam() == DataType::kFloat32 ? 2e-4 : 0.5);
    EXPECT_GT(MaxDifference(a, b), 0.0) << "one path, run twice?";
  }
}

TEST_P(CpuTransformerTest, ChunksAndSingleTokensHaveTheBitsOfOnePass) {
  for (const ModelConfig& config : Configs()) {
    const TempDir dir;
    WriteCheckpoint(dir.path(), config, 2);
    TestGroup group = LoadOrDie(dir.path(), Options(GetParam()));
    const std::vector<int32_t> text = RandomTokens(41, 3);
    const LogitRows whole = InChunks(group, text, text.size(), Iota(0, 11));
    EXPECT_EQ(InChunks(group, text, 1, {40, 3, 17, 8, 22, 1, 60, 5, 33, 20, 9}), whole);
    EXPECT_EQ(InChunks(group, text, 7, Iota(20, 11)), whole);
    EXPECT_EQ(InChunks(group, text, 16, Iota(5, 11)), whole);
  }
}

TEST_P(CpuTransformerTest, OtherSequencesOfTheBatchChangeNothing) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), OddConfig(), 3);
  TestGroup group = LoadOrDie(dir.path(), Options(GetParam()));
  const std::vector<int32_t> text = RandomTokens(9, 4);
  const LogitRows alone = InChunks(group, text, text.size(), Iota(0, 3));
  Batch batch;
  AddChain(&batch, RandomTokens(13, 5), 0, Iota(10, 4));
  AddTree(&batch, RandomTokens(5, 6), {-1, 0, 1, 0, 3}, 0, Iota(20, 2));
  AddChain(&batch, text, 0, Iota(30, 3));
  AddChain(&batch, RandomTokens(1, 7), 0, Iota(40, 1));
  const LogitRows together = Logits(group, batch);
  EXPECT_EQ(LogitRows(together.begin() + 18, together.begin() + 27), alone);
}

// Rows without wanted logits are dropped before the last layer's end: the others must not notice.
TEST_P(CpuTransformerTest, LogitsOfSomeRowsOnly) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), OddConfig(), 4);
  TestGroup group = LoadOrDie(dir.path(), Options(GetParam()), 2);
  const std::vector<int32_t> text = RandomTokens(12, 8);
  Batch batch;
  AddChain(&batch, text, 0, Iota(0, 4));
  const LogitRows all = Logits(group, batch);
  batch.logit_rows = {0, 5, 11};
  EXPECT_EQ(Logits(group, batch), (LogitRows{all[0], all[5], all[11]}));
  batch.logit_rows = {};
  EXPECT_TRUE(Logits(group, batch).empty());
  Batch next;  // the KV was written all the same
  AddChain(&next, {text[11]}, 11, Iota(0, 4));
  EXPECT_EQ(Logits(group, next)[0], all[11]);
}

// The heart of exactness: every node of a verified tree has the logits of plain decoding, and after
// its path is moved to the front, decoding goes on as if there had been no tree.
TEST_P(CpuTransformerTest, TreeNodesHaveTheBitsOfPlainDecoding) {
  for (const ModelConfig& config : Configs()) {
    const TempDir dir;
    WriteCheckpoint(dir.path(), config, 5);
    TestGroup group = LoadOrDie(dir.path(), Options(GetParam()));
    const std::vector<int32_t> prompt = RandomTokens(10, 9);
    const std::vector<int32_t> nodes = RandomTokens(9, 10);
    const std::vector<int32_t> parents = {-1, 0, 0, 1, 2, 2, 5, 4, 6};
    const std::vector<int32_t> blocks = {50, 2, 31, 7, 44};
    const int32_t prompt_length = static_cast<int32_t>(prompt.size());
    InChunks(group, prompt, 4, blocks);
    Batch tree;
    AddTree(&tree, nodes, parents, prompt_length, blocks);
    const LogitRows tree_logits = Logits(group, tree);

    for (int32_t leaf = 0; leaf < static_cast<int32_t>(nodes.size()); ++leaf) {
      std::vector<int32_t> path;
      for (int32_t node = leaf; node >= 0; node = parents[node]) path.insert(path.begin(), node);
      std::vector<int32_t> text = prompt;
      for (int32_t node : path) text.push_back(nodes[node]);
      const LogitRows plain = InChunks(group, text, 1, {10, 11, 12, 13, 14});
      for (size_t i = 0; i < path.size(); ++i) {
        ASSERT_EQ(tree_logits[path[i]], plain[prompt_length + i]) << "node " << path[i];
      }
    }

    // Accept the path 0, 2, 5, 6, 8.
    const std::vector<int32_t> path = {0, 2, 5, 6, 8};
    const auto slot = [&](int32_t logical) { return blocks[logical / 4] * 4 + logical % 4; };
    std::vector<KvMove> moves;
    std::vector<int32_t> text = prompt;
    for (size_t i = 0; i < path.size(); ++i) {
      text.push_back(nodes[path[i]]);
      const int32_t to = prompt_length + static_cast<int32_t>(i);
      moves.push_back({slot(prompt_length + path[i]), slot(to)});
    }
    group.MoveKv(moves);
    text.push_back(42);
    Batch next;
    AddChain(&next, {42}, static_cast<int32_t>(text.size()) - 1, blocks);
    const LogitRows plain = InChunks(group, text, text.size(), {10, 11, 12, 13, 14});
    EXPECT_EQ(Logits(group, next)[0], plain.back());
  }
}

// A draft grows its tree level by level; a target would run it in one pass.
TEST_P(CpuTransformerTest, TreeInSeveralPassesHasTheBitsOfOne) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), OddConfig(), 6);
  TestGroup group = LoadOrDie(dir.path(), Options(GetParam()));
  const std::vector<int32_t> nodes = RandomTokens(7, 11);
  const std::vector<int32_t> parents = {-1, 0, 0, 1, 2, 3, 4};
  Batch whole;
  whole.mask_words = 4;
  AddTree(&whole, nodes, parents, 0, Iota(0, 2));
  const LogitRows want = Logits(group, whole);
  LogitRows got;
  for (const auto& [first, end] : {std::pair{0, 1}, {1, 3}, {3, 7}}) {
    Batch level;
    level.mask_words = 4;
    level.tokens = Slice(nodes, first, end);
    level.positions = Slice(whole.positions, first, end);
    level.ancestors.assign(whole.ancestors.begin() + first * 4, whole.ancestors.begin() + end * 4);
    level.blocks = Iota(20, 2);
    level.sequences.push_back(
        {.tree_first = first, .row_count = end - first, .block_count = 2, .causal = false});
    level.logit_rows = Iota(0, end - first);
    const LogitRows rows = Logits(group, level);
    got.insert(got.end(), rows.begin(), rows.end());
  }
  EXPECT_EQ(got, want);
}

TEST_P(CpuTransformerTest, RanksAndThreadsChangeNoBit) {
  for (const ModelConfig& config : Configs()) {
    const TempDir dir;
    WriteCheckpoint(dir.path(), config, 7);
    RankOptions options = Options(GetParam());
    TestGroup one = LoadOrDie(dir.path(), options);
    Batch batch;
    AddChain(&batch, RandomTokens(19, 12), 0, Iota(0, 5));
    AddTree(&batch, RandomTokens(6, 13), {-1, 0, 0, 1, 2, 2}, 0, Iota(10, 2));
    const LogitRows want = Logits(one, batch);
    for (int ranks : {2, 4}) {
      TestGroup group = LoadOrDie(dir.path(), options, ranks);
      EXPECT_EQ(Logits(group, batch), want) << ranks << " ranks of " << config.architecture;
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(group.rank(rank).NumericsFingerprint(), one.rank(0).NumericsFingerprint());
        EXPECT_EQ(group.rank(rank).KvBlockBytes() * ranks, one.rank(0).KvBlockBytes());
      }
    }
    options.threads = 3;
    TestGroup threaded = LoadOrDie(dir.path(), options, 2);
    EXPECT_EQ(Logits(threaded, batch), want);
    EXPECT_EQ(threaded.rank(0).NumericsFingerprint(), one.rank(0).NumericsFingerprint());
  }
}

// Few rows, which go through the stages in turn, and so many that stages work on parts of them at
// once; the cache of every stage then holds what it should.
TEST_P(CpuTransformerTest, StagesChangeNoBit) {
  for (const ModelConfig& config : Configs()) {
    const TempDir dir;
    WriteCheckpoint(dir.path(), config, 15);
    RankOptions options = Options(GetParam());
    TestGroup one = LoadOrDie(dir.path(), options);
    Batch few, many, next;
    AddTree(&few, RandomTokens(6, 16), {-1, 0, 0, 1, 2, 2}, 0, Iota(60, 2));
    AddChain(&many, RandomTokens(150, 17), 0, Iota(0, 40));
    AddTree(&many, RandomTokens(20, 18), Iota(-1, 20), 0, Iota(40, 6));
    AddChain(&many, RandomTokens(40, 19), 0, Iota(46, 11));
    std::erase_if(many.logit_rows, [](int32_t row) { return row % 3 != 0; });
    const std::vector<KvMove> moves = {{150, 3}, {160, 149}};
    AddChain(&next, {5, 6}, 150, Iota(0, 40));
    next.logit_rows = {1};
    const auto run = [&](TestGroup& group) {
      std::vector<LogitRows> all = {Logits(group, few), Logits(group, many)};
      group.MoveKv(moves);
      all.push_back(Logits(group, next));
      next.logit_rows.clear();
      all.push_back(Logits(group, next));
      next.logit_rows = {1};
      return all;
    };
    const std::vector<LogitRows> want = run(one);
    for (const GroupShape& shape : {GroupShape{1, 2}, {1, 3}, {2, 2}, {2, 3}}) {
      options.pipeline_stages = shape.stages;
      TestGroup group = LoadOrDie(dir.path(), options, shape.ranks());
      EXPECT_EQ(run(group), want) << shape.stages << " stages of " << shape.tensor_parallel;
      int64_t block_bytes = 0;
      for (int rank = 0; rank < shape.ranks(); ++rank) {
        EXPECT_EQ(group.rank(rank).NumericsFingerprint(), one.rank(0).NumericsFingerprint());
        block_bytes += group.rank(rank).KvBlockBytes();
      }
      EXPECT_EQ(block_bytes, one.rank(0).KvBlockBytes());
    }
  }
}

TEST_P(CpuTransformerTest, StagesOfTheReferencePathAgreeWithIt) {
  if (!reference::IsBuilt()) GTEST_SKIP() << "built without libtorch";
  const TempDir dir;
  WriteCheckpoint(dir.path(), OddConfig(), 20);
  RankOptions options = Options(GetParam());
  options.reference = true;
  TestGroup one = LoadOrDie(dir.path(), options);
  options.pipeline_stages = 3;
  TestGroup group = LoadOrDie(dir.path(), options, 3);
  Batch batch;
  AddChain(&batch, RandomTokens(150, 21), 0, Iota(0, 40));
  EXPECT_EQ(Logits(group, batch), Logits(one, batch));
  EXPECT_NE(group.rank(0).NumericsFingerprint(), one.rank(0).NumericsFingerprint());
}

// libtorch's rows keep their bits where as many go at once always (see bench/model/row_invariance).
TEST_P(CpuTransformerTest, ReferencePathIsBatchInvariantWhenAsked) {
  if (!reference::IsBuilt()) GTEST_SKIP() << "built without libtorch";
  const TempDir dir;
  WriteCheckpoint(dir.path(), OddConfig(), 8);
  RankOptions options = Options(GetParam());
  options.reference = true;
  TestGroup group = LoadOrDie(dir.path(), options);
  const std::vector<int32_t> text = RandomTokens(12, 14);
  const LogitRows whole = InChunks(group, text, text.size(), Iota(0, 3));
  EXPECT_EQ(InChunks(group, text, 1, Iota(10, 3)), whole);
  EXPECT_EQ(InChunks(group, text, 5, Iota(20, 3)), whole);
}

INSTANTIATE_TEST_SUITE_P(Types, CpuTransformerTest,
                         ::testing::Values(DataType::kFloat32, DataType::kBFloat16),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST(FingerprintTest, TellsWeightsDtypeAndPathApart) {
  ModelConfig config = OddConfig();
  const TempDir a, b, c;
  WriteCheckpoint(a.path(), config, 1);
  WriteCheckpoint(b.path(), config, 2);
  config.rope.theta = 20000.0;
  WriteCheckpoint(c.path(), config, 1);
  const auto fingerprint = [](const TempDir& dir, DataType dtype, bool reference, int ranks) {
    RankOptions options = Options(dtype);
    options.reference = reference;
    return LoadOrDie(dir.path(), options, ranks).rank(0).NumericsFingerprint();
  };
  const uint64_t first = fingerprint(a, DataType::kFloat32, false, 1);
  EXPECT_EQ(fingerprint(a, DataType::kFloat32, false, 1), first);
  std::set<uint64_t> distinct = {
      first,
      fingerprint(b, DataType::kFloat32, false, 1),
      fingerprint(c, DataType::kFloat32, false, 1),
      fingerprint(a, DataType::kBFloat16, false, 1),
  };
  if (reference::IsBuilt()) {
    distinct.insert(fingerprint(a, DataType::kFloat32, true, 1));
    distinct.insert(fingerprint(a, DataType::kFloat32, true, 2));
  }
  EXPECT_EQ(distinct.size(), reference::IsBuilt() ? 6u : 4u);
}

TEST(TensorParallelTest, NamesTheNumbersOfRanksThatWork) {
  const ModelConfig odd = OddConfig();  // 4 KV heads, 148 = 4 * 37 features
  for (int ranks : {1, 2, 4}) EXPECT_TRUE(CheckShape(odd, {.tensor_parallel = ranks}).ok());
  for (int ranks : {0, -1, 3, 8}) {
    const absl::Status status = CheckShape(odd, {.tensor_parallel = ranks});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("allowed: 1, 2, 4"));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("allowed: 1, 2, 4, 8")));
  }
  ModelConfig three = odd;
  three.heads = three.kv_heads = 3;
  EXPECT_TRUE(CheckShape(three, {.tensor_parallel = 1}).ok());
  EXPECT_FALSE(CheckShape(three, {.tensor_parallel = 3}).ok());
  const TempDir dir;
  WriteCheckpoint(dir.path(), three, 1);
  EXPECT_THAT(
      std::string(TestGroup::Load(dir.path(), Options(DataType::kFloat32), 2).status().message()),
      HasSubstr("2 tensor-parallel ranks for a model with 3 KV heads"));
}

TEST(PipelineTest, NamesTheNumbersOfStagesThatWork) {
  const ModelConfig odd = OddConfig();
  ASSERT_EQ(odd.layers, 3);
  for (int stages : {1, 2, 3}) EXPECT_TRUE(CheckShape(odd, {2, stages}).ok());
  for (int stages : {0, -1, 4}) {
    const absl::Status status = CheckShape(odd, {2, stages});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("with 3 layers; allowed: 1 to 3"));
  }
  const TempDir dir;
  WriteCheckpoint(dir.path(), odd, 1);
  RankOptions options = Options(DataType::kFloat32);
  options.pipeline_stages = 2;
  EXPECT_THAT(std::string(TestGroup::Load(dir.path(), options, 1).status().message()),
              HasSubstr("2 pipeline stages of 1 ranks"));
}

// Checkpoints that do not hold what config.json says.
TEST(LoadTest, BrokenCheckpointsAreOneClearLine) {
  const auto load = [](const std::string& dir) {
    return TestGroup::Load(dir, Options(DataType::kFloat32), 1).status();
  };
  const auto expect = [&](const std::string& dir, absl::StatusCode code, const std::string& says) {
    const absl::Status status = load(dir);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(says));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
  };
  expect("/nonexistent/model", absl::StatusCode::kNotFound, "/nonexistent/model");

  const ModelConfig config = OddConfig();
  const TempDir dir;
  WriteCheckpoint(dir.path(), config, 1);
  const std::string file = dir.File("model.safetensors");
  ASSERT_TRUE(load(dir.path()).ok());
  const uint64_t size = std::filesystem::file_size(file);
  std::filesystem::resize_file(file, size - 1);
  expect(dir.path(), absl::StatusCode::kInvalidArgument, "truncated");
  std::filesystem::resize_file(file, 20);
  expect(dir.path(), absl::StatusCode::kInvalidArgument, "truncated");
  std::filesystem::remove(file);
  expect(dir.path(), absl::StatusCode::kNotFound, "model.safetensors");

  // Every tensor is missed, and every tensor's shape is checked.
  const std::vector<NamedTensor> tensors = RandomTensors(config, 1);
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<NamedTensor> fewer = tensors;
    fewer.erase(fewer.begin() + i);
    WriteSafetensors(file, fewer, DataType::kFloat32);
    expect(dir.path(), absl::StatusCode::kNotFound, "no tensor '" + tensors[i].name + "'");
    std::vector<NamedTensor> reshaped = tensors;
    reshaped[i].shape.push_back(1);
    WriteSafetensors(file, reshaped, DataType::kFloat32);
    expect(dir.path(), absl::StatusCode::kInvalidArgument, tensors[i].name);
  }
}

TEST(LoadTest, BadOptionsAreOneClearLine) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), OddConfig(), 1);
  RankOptions options = Options(DataType::kFloat32);
  options.kv_blocks = 0;
  EXPECT_THAT(std::string(TestGroup::Load(dir.path(), options, 1).status().message()),
              HasSubstr("0 blocks of 4 slots; allowed: at least 1"));
  options = Options(DataType::kFloat32);
  options.threads = 0;
  EXPECT_THAT(std::string(TestGroup::Load(dir.path(), options, 1).status().message()),
              HasSubstr("0 threads in a rank; allowed: at least 1"));
  TestGroup group = LoadOrDie(dir.path(), Options(DataType::kFloat32), 2);
  Batch batch;
  AddChain(&batch, {5}, 0, {64});
  EXPECT_THAT(std::string(group.Forward(batch).status().message()),
              HasSubstr("block 64; allowed: 0 to 63"));
}

// A float32 checkpoint run in bfloat16 equals its rounded copy, and a bfloat16 checkpoint run in
// float32 its widened one.
TEST(LoadTest, CheckpointTypeIsConverted) {
  ModelConfig config = OddConfig();
  config.checkpoint_type = DataType::kBFloat16;
  const TempDir stored_bfloat16, stored_float32;
  WriteCheckpoint(stored_bfloat16.path(), config, 3);
  config.checkpoint_type = DataType::kFloat32;
  WriteCheckpoint(stored_float32.path(), config, 3);
  Batch batch;
  AddChain(&batch, RandomTokens(8, 1), 0, Iota(0, 2));
  TestGroup a = LoadOrDie(stored_bfloat16.path(), Options(DataType::kFloat32));
  TestGroup b = LoadOrDie(stored_float32.path(), Options(DataType::kFloat32));
  const double difference = MaxDifference(Logits(a, batch), Logits(b, batch));
  EXPECT_GT(difference, 0.0);
  EXPECT_LT(difference, 0.5);
}

}  // namespace
}  // namespace specfabric::model
