// EAGLE-3 drafters on CPUs. What their numbers are is compared with another implementation in
// tests/checkpoints; here: that no bit depends on how rows are put together, and what is loaded.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/checkpoint_tensors.h"
#include "model/reference/linear.h"
#include "tests/model/checkpoint_writer.h"
#include "tests/model/group.h"
#include "tests/model/passes.h"

namespace specfabric::model {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using Tensors = std::vector<NamedTensor>;

// The plain drafter, and one of everything that is optional.
std::vector<ModelConfig> Configs() {
  ModelConfig full = OddDrafterConfig();
  full.layers = 2;
  full.qkv_bias = full.output_bias = full.mlp_bias = true;
  full.heads = 6;
  full.kv_heads = 3;
  full.head_dim = 14;
  full.states->layers = {3, 2};
  full.states->target_hidden = 40;
  full.states->draft_vocabulary = full.vocabulary;
  full.states->fc_norm = full.states->fc_bias = true;
  full.states->norm_before_residual = full.states->norm_output = true;
  return {OddDrafterConfig(), full};
}

std::vector<float> RandomStates(int rows, int width, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> states(static_cast<size_t>(rows) * width);
  for (float& value : states) value = normal(random);
  return states;
}

// Fills in states for the rows of a batch that have none yet.
void AddStates(Batch* batch, const ModelConfig& config, uint32_t seed) {
  const int rows = batch->rows() - static_cast<int>(batch->states.size()) / config.hidden;
  const std::vector<float> states = RandomStates(rows, config.hidden, seed);
  batch->states.insert(batch->states.end(), states.begin(), states.end());
}

std::vector<float> NextStates(TestGroup& group) {
  const absl::Span<const float> states = group.rank(0).next_states();
  return {states.begin(), states.end()};
}

class Eagle3Test : public ::testing::TestWithParam<DataType> {};

TEST_P(Eagle3Test, RowsOfABatchDoNotChangeOneAnother) {
  for (const ModelConfig& config : Configs()) {
    const size_t hidden = config.hidden;
    const TempDir dir;
    WriteCheckpoint(dir.path(), config, 1);
    TestGroup group = LoadOrDie(dir.path(), Options(GetParam()));
    Batch whole;
    AddChain(&whole, RandomTokens(13, 1), 0, Iota(0, 4));
    AddStates(&whole, config, 2);
    const LogitRows want = Logits(group, whole);
    const std::vector<float> next = NextStates(group);
    ASSERT_EQ(next.size(), 13 * hidden);
    EXPECT_EQ(want[0].size(), static_cast<size_t>(config.vocabulary));

    LogitRows one_by_one;
    std::vector<float> next_one_by_one;
    for (int i = 0; i < 13; ++i) {
      Batch batch;  // beside a row of another sequence
      AddChain(&batch, {whole.tokens[i]}, i, Iota(20, 4));
      batch.states.assign(&whole.states[i * hidden], &whole.states[i * hidden] + hidden);
      AddChain(&batch, {7}, 0, Iota(30, 1));
      AddStates(&batch, config, 3);
      batch.logit_rows = {0};
      one_by_one.push_back(Logits(group, batch)[0]);
      const std::vector<float> states = NextStates(group);
      next_one_by_one.insert(next_one_by_one.end(), states.begin(), states.end());
    }
    EXPECT_EQ(one_by_one, want);
    EXPECT_EQ(next_one_by_one, next);
  }
}

// A tree whose rows take the states that their parents hand on has, on each path, the bits of a
// chain.
TEST_P(Eagle3Test, TreesGrownByLevelsHaveTheBitsOfChains) {
  for (const ModelConfig& config : Configs()) {
    const size_t hidden = config.hidden;
    const TempDir dir;
    WriteCheckpoint(dir.path(), config, 3);
    TestGroup group = LoadOrDie(dir.path(), Options(GetParam()));
    const std::vector<int32_t> text = RandomTokens(6, 4);
    Batch prefix;
    AddChain(&prefix, text, 0, Iota(0, 4));
    AddStates(&prefix, config, 5);
    prefix.logit_rows = {5};
    Logits(group, prefix);
    const std::vector<float> root = NextStates(group);

    const std::vector<int32_t> nodes = {11, 12, 13, 14, 15, 16};
    const std::vector<int32_t> parents = {-1, 0, 0, 2, 1, 3};
    Batch shape;  // for positions and masks
    AddTree(&shape, nodes, parents, 6, Iota(0, 4));
    std::vector<std::vector<float>> states(nodes.size());
    LogitRows of_tree;
    for (const auto& [first, end] : {std::pair{0, 1}, {1, 3}, {3, 5}, {5, 6}}) {
      Batch level;
      level.tokens.assign(nodes.begin() + first, nodes.begin() + end);
      level.positions.assign(shape.positions.begin() + first, shape.positions.begin() + end);
      level.ancestors.assign(shape.ancestors.begin() + first, shape.ancestors.begin() + end);
      level.blocks = Iota(0, 4);
      level.sequences.push_back({.kv_len = 6,
                                 .tree_first = first,
                                 .row_count = end - first,
                                 .block_count = 4,
                                 .causal = false});
      level.logit_rows = Iota(0, end - first);
      for (int node = first; node < end; ++node) {
        const std::vector<float>& state = node == 0 ? root : states[parents[node]];
        level.states.insert(level.states.end(), state.begin(), state.end());
      }
      const LogitRows rows = Logits(group, level);
      of_tree.insert(of_tree.end(), rows.begin(), rows.end());
      const std::vector<float> next = NextStates(group);
      for (int node = first; node < end; ++node) {
        const float* state = &next[(node - first) * hidden];
        states[node].assign(state, state + hidden);
      }
    }

    for (const std::vector<int32_t>& path : {std::vector<int32_t>{0, 1, 4}, {0, 2, 3, 5}}) {
      prefix.blocks = Iota(40, 4);
      Logits(group, prefix);
      std::vector<float> state = root;
      for (size_t i = 0; i < path.size(); ++i) {
        Batch step;
        AddChain(&step, {nodes[path[i]]}, 6 + static_cast<int32_t>(i), Iota(40, 4));
        step.states = state;
        EXPECT_EQ(Logits(group, step)[0], of_tree[path[i]]);
        state = NextStates(group);
        EXPECT_EQ(state, states[path[i]]);
      }
    }
  }
}

TEST_P(Eagle3Test, AgreesWithTheReferencePath) {
  if (!reference::IsBuilt()) GTEST_SKIP() << "built without libtorch";
  for (const ModelConfig& config : Configs()) {
    const TempDir dir;
    WriteCheckpoint(dir.path(), config, 5);
    RankOptions options = Options(GetParam());
    TestGroup fast = LoadOrDie(dir.path(), options);
    options.reference = true;
    TestGroup reference = LoadOrDie(dir.path(), options);
    const double close = GetParam() == DataType::kFloat32 ? 2e-4 : 0.5;
    const int width = static_cast<int>(config.states->layers.size()) * config.states->target_hidden;
    const std::vector<float> states = RandomStates(14, width, 6);
    LogitRows fused(2, std::vector<float>(14 * config.hidden));
    ASSERT_TRUE(fast.rank(0).FuseStates(states, 14, fused[0].data()).ok());
    ASSERT_TRUE(reference.rank(0).FuseStates(states, 14, fused[1].data()).ok());
    EXPECT_LT(MaxDifference({fused[0]}, {fused[1]}), close);
    Batch batch;
    AddChain(&batch, RandomTokens(9, 7), 0, Iota(0, 3));
    AddTree(&batch, RandomTokens(5, 8), {-1, 0, 0, 1, 2}, 0, Iota(10, 2));
    batch.states = fused[0];
    LogitRows a = Logits(fast, batch), b = Logits(reference, batch);
    for (LogitRows* rows : {&a, &b}) {
      for (std::vector<float>& row : *rows)
        std::erase_if(row, [](float x) { return std::isinf(x); });
    }
    EXPECT_EQ(a[0].size(), static_cast<size_t>(config.states->draft_vocabulary));
    EXPECT_LT(MaxDifference(a, b), close);
    EXPECT_GT(MaxDifference(a, b), 0.0) << "one path, run twice?";
    EXPECT_LT(MaxDifference({NextStates(fast)}, {NextStates(reference)}), close);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Eagle3Test,
                         ::testing::Values(DataType::kFloat32, DataType::kBFloat16),
                         [](const auto& info) { return std::string(Name(info.param)); });

Batch SomeRows(const ModelConfig& config) {
  Batch batch;
  AddChain(&batch, RandomTokens(7, 1), 0, Iota(0, 2));
  AddStates(&batch, config, 2);
  return batch;
}

LogitRows LogitsOf(const std::string& dir, const std::string& target_dir = "") {
  RankOptions options = Options();
  options.target_dir = target_dir;
  TestGroup group = LoadOrDie(dir, options);
  return Logits(group, SomeRows(group.config()));
}

NamedTensor& Find(Tensors& tensors, const std::string& name) {
  return *std::find_if(tensors.begin(), tensors.end(),
                       [&](const NamedTensor& tensor) { return tensor.name == name; });
}

void Drop(Tensors* tensors, const std::string& name) {
  std::erase_if(*tensors, [&](const NamedTensor& tensor) { return tensor.name == name; });
}

// The folder of a drafter whose tensors were changed.
void Write(const TempDir& dir, const ModelConfig& config,
           const std::function<void(Tensors*)>& change) {
  WriteCheckpoint(dir.path(), config, 1);
  Tensors tensors = RandomTensors(config, 1);
  change(&tensors);
  WriteSafetensors(dir.File("model.safetensors"), tensors, DataType::kFloat32);
}

TEST(Eagle3HeadTest, LogitsAreThoseOfTheTargetsIds) {
  const ModelConfig config = OddDrafterConfig();
  const TempDir part, whole;
  WriteCheckpoint(part.path(), config, 1);
  std::vector<int64_t> ids;
  ModelConfig full = config;
  full.states->draft_vocabulary = full.vocabulary;
  // The same head, with rows for all ids, of which the draft's ids have its own.
  Write(whole, config, [&](Tensors* tensors) {
    NamedTensor& head = Find(*tensors, "lm_head.weight");
    const NamedTensor rows = head;
    head.shape[0] = config.vocabulary;
    head.values.assign(static_cast<size_t>(config.vocabulary) * config.hidden, 0.25f);
    const std::vector<int64_t>& offsets = Find(*tensors, "d2t").integers;
    for (size_t i = 0; i < offsets.size(); ++i) {
      ids.push_back(static_cast<int64_t>(i) + offsets[i]);
      std::copy_n(&rows.values[i * config.hidden], config.hidden,
                  &head.values[ids.back() * config.hidden]);
    }
    Drop(tensors, "d2t");
  });
  const TempDir config_of_whole;
  WriteCheckpoint(config_of_whole.path(), full, 1);
  WriteFile(whole.File("config.json"), ReadFile(config_of_whole.File("config.json")));

  const LogitRows got = LogitsOf(part.path()), all = LogitsOf(whole.path());
  for (size_t row = 0; row < got.size(); ++row) {
    ASSERT_EQ(got[row].size(), 101u);
    for (int64_t id = 0; id < config.vocabulary; ++id) {
      const bool is_scored = std::find(ids.begin(), ids.end(), id) != ids.end();
      EXPECT_EQ(got[row][id], is_scored ? all[row][id] : -std::numeric_limits<float>::infinity());
    }
  }
}

// Embedding and head come from the target where the drafter has none, as if they were its own.
TEST(Eagle3TargetTest, LendsEmbeddingAndHead) {
  ModelConfig config = OddDrafterConfig();
  config.states->draft_vocabulary = config.vocabulary;
  for (bool tied : {false, true}) {
    ModelConfig target = OddConfig();
    target.tied_embeddings = tied;
    const TempDir target_dir, own, shared;
    WriteCheckpoint(target_dir.path(), target, 9);
    Tensors of_target = RandomTensors(target, 9);
    const NamedTensor& embedding = Find(of_target, "model.embed_tokens.weight");
    const NamedTensor& head = tied ? embedding : Find(of_target, "lm_head.weight");
    Write(own, config, [&](Tensors* tensors) {
      Find(*tensors, "embed_tokens.weight").values = embedding.values;
      Find(*tensors, "lm_head.weight").values = head.values;
    });
    Write(shared, config, [&](Tensors* tensors) {
      Drop(tensors, "embed_tokens.weight");
      Drop(tensors, "lm_head.weight");
    });
    const LogitRows want = LogitsOf(own.path());
    EXPECT_EQ(LogitsOf(shared.path(), target_dir.path()), want);
    EXPECT_EQ(LogitsOf(own.path(), target_dir.path()), want) << "its own go first";
  }
}

TEST(Eagle3TargetTest, SaysWhichLayersAreMeant) {
  ModelConfig config = OddDrafterConfig();
  config.states->layers = {};
  ModelConfig target = OddConfig();
  target.layers = 6;
  const TempDir dir, target_dir;
  ModelConfig three = config;
  three.states->layers = {1, 1, 1};
  Write(dir, config, [&](Tensors* tensors) { *tensors = RandomTensors(three, 1); });
  WriteCheckpoint(target_dir.path(), target, 2);
  RankOptions options = Options();
  options.target_dir = target_dir.path();
  TestGroup group = LoadOrDie(dir.path(), options);
  EXPECT_EQ(group.config().states->layers, (std::vector<int32_t>{2, 3, 3}));
}

TEST(Eagle3LoadTest, TheFirstLayerMayBeNamedMiddleLayer) {
  const ModelConfig config = OddDrafterConfig();
  const TempDir plain, middle;
  WriteCheckpoint(plain.path(), config, 1);
  Write(middle, config, [](Tensors* tensors) {
    for (NamedTensor& tensor : *tensors) {
      if (!tensor.name.starts_with("layers.0.")) continue;
      tensor.name = absl::StrCat("midlayer.", tensor.name.substr(9));
    }
    // What training leaves behind changes nothing.
    tensors->push_back({"t2d", {4}, {0, 1, 0, 1}});
    tensors->push_back({"verifier_norm.weight", {1}, {1}});
  });
  EXPECT_EQ(LogitsOf(middle.path()), LogitsOf(plain.path()));
}

TEST(Eagle3LoadTest, FingerprintsTellFlagsAndTargetsApart) {
  ModelConfig config = OddDrafterConfig();
  config.states->draft_vocabulary = config.vocabulary;
  const auto fingerprint = [](const std::string& dir, const std::string& target = "") {
    RankOptions options = Options();
    options.target_dir = target;
    return LoadOrDie(dir, options).rank(0).NumericsFingerprint();
  };
  std::set<uint64_t> distinct;
  const TempDir first, again, second, third, shared, one_target, other_target;
  WriteCheckpoint(first.path(), config, 1);
  WriteCheckpoint(again.path(), config, 1);
  distinct.insert(fingerprint(first.path()));
  EXPECT_EQ(fingerprint(again.path()), *distinct.begin());
  config.states->norm_output = true;
  WriteCheckpoint(second.path(), config, 1);
  distinct.insert(fingerprint(second.path()));
  config.states->layers = {0, 3, 2};
  WriteCheckpoint(third.path(), config, 1);
  distinct.insert(fingerprint(third.path()));
  Write(shared, config, [](Tensors* tensors) { Drop(tensors, "embed_tokens.weight"); });
  WriteCheckpoint(one_target.path(), OddConfig(), 1);
  WriteCheckpoint(other_target.path(), OddConfig(), 2);
  distinct.insert(fingerprint(shared.path(), one_target.path()));
  distinct.insert(fingerprint(shared.path(), other_target.path()));
  EXPECT_EQ(distinct.size(), 5u);
}

void ExpectLine(const absl::Status& status, absl::StatusCode code, const std::string& says) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(says));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
}

TEST(Eagle3LoadTest, BrokenCheckpointsAreOneClearLine) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  const auto load = [](const std::string& dir) {
    return TestGroup::Load(dir, Options(), 1).status();
  };
  for (const ModelConfig& config : Configs()) {
    const TempDir dir;
    WriteCheckpoint(dir.path(), config, 1);
    const std::string file = dir.File("model.safetensors");
    const Tensors tensors = RandomTensors(config, 1);
    for (const NamedTensor& tensor : tensors) {
      Tensors fewer = tensors;
      Drop(&fewer, tensor.name);
      WriteSafetensors(file, fewer, DataType::kFloat32);
      const absl::Status missing = load(dir.path());
      EXPECT_FALSE(missing.ok());
      EXPECT_THAT(std::string(missing.message()),
                  HasSubstr(absl::StrCat("no tensor '", tensor.name, "'")));
      Tensors reshaped = tensors;
      Find(reshaped, tensor.name).shape.push_back(1);
      WriteSafetensors(file, reshaped, DataType::kFloat32);
      ExpectLine(load(dir.path()), kInvalid, tensor.name);
    }
  }
  const ModelConfig config = OddDrafterConfig();
  const auto changed = [&](const std::function<void(Tensors*)>& change) {
    const TempDir dir;
    Write(dir, config, change);
    return load(dir.path());
  };
  const auto with = [&](const NamedTensor& more) {
    return changed([&](Tensors* tensors) { tensors->push_back(more); });
  };
  const auto offset = [&](int at, int64_t value) {
    return changed([&](Tensors* tensors) { Find(*tensors, "d2t").integers[at] = value; });
  };
  ExpectLine(with({"mask_hidden", {1}, {1}}), kUnimplemented, "P-EAGLE");
  ExpectLine(with({"input_norm.weight", {1}, {1}}), kUnimplemented, "'input_norm.weight' has no");
  ExpectLine(with({"fc_norm.0.weight", {1}, {1}}), kUnimplemented, "'fc_norm.0.weight' has no");
  ExpectLine(with({"layers.1.mlp.up_proj.weight", {1}, {1}}), kUnimplemented, "layers.1.mlp");
  ExpectLine(with({"midlayer.mlp.up_proj.weight", {1}, {1}}), kUnimplemented, "tensors, the first");
  ExpectLine(with({"fc.weight_scale", {1}, {1}}), kUnimplemented, "quantized");
  ExpectLine(offset(0, -1), kInvalid, "sets draft token 0 off by -1; allowed: to ids below 101");
  ExpectLine(offset(36, 101), kInvalid, "draft token 36 off by 101");
  ExpectLine(offset(5, std::numeric_limits<int64_t>::max()), kInvalid, "draft token 5");
  ExpectLine(offset(1, -1), kInvalid, "each once");
  ExpectLine(changed([](Tensors* tensors) {
               NamedTensor& ids = Find(*tensors, "d2t");
               ids.values.resize(ids.integers.size());
               ids.integers.clear();
             }),
             kInvalid, "'d2t' has dtype F32");

  const TempDir pickled;
  WriteCheckpoint(pickled.path(), config, 1);
  std::filesystem::rename(pickled.File("model.safetensors"), pickled.File("pytorch_model.bin"));
  ExpectLine(load(pickled.path()), kUnimplemented,
             "holds pytorch_model.bin, which is not supported; allowed: model.safetensors");
}

TEST(Eagle3TargetTest, WhatItCannotLendIsOneClearLine) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto load = [](const std::string& dir, const std::string& target_dir) {
    RankOptions options = Options();
    options.target_dir = target_dir;
    return TestGroup::Load(dir, options, 1).status();
  };
  ModelConfig config = OddDrafterConfig();
  const TempDir no_embedding, no_head, no_layers, target_dir;
  WriteCheckpoint(target_dir.path(), OddConfig(), 1);
  Write(no_embedding, config, [](Tensors* tensors) { Drop(tensors, "embed_tokens.weight"); });
  ExpectLine(load(no_embedding.path(), ""), kInvalid,
             "no tensor 'embed_tokens.weight': the target's, which stands in for it, is needed");
  Write(no_head, config, [](Tensors* tensors) { Drop(tensors, "lm_head.weight"); });
  ExpectLine(load(no_head.path(), target_dir.path()), kInvalid,
             "no tensor 'lm_head.weight', and the target's, of 101 tokens and hidden size 72, "
             "cannot stand in for it: allowed: 37 tokens and 72");
  ModelConfig silent = config;
  silent.states->layers = {};
  Write(no_layers, silent, [&](Tensors* tensors) { *tensors = RandomTensors(config, 1); });
  ExpectLine(load(no_layers.path(), ""), kInvalid, "config.json does not say which layers");
  ExpectLine(load(no_layers.path(), target_dir.path() + "/none"), absl::StatusCode::kNotFound,
             "/none");
  ExpectLine(load(no_layers.path(), no_layers.path()), kInvalid, "a drafter too");

  ModelConfig narrow = config;
  narrow.hidden = 48;
  narrow.states->target_hidden = 72;
  const TempDir narrow_dir;
  Write(narrow_dir, narrow, [](Tensors* tensors) { Drop(tensors, "embed_tokens.weight"); });
  ExpectLine(load(narrow_dir.path(), target_dir.path()), kInvalid,
             "cannot stand in for it: allowed: 101 tokens and 48");
}

TEST(Eagle3RunTest, BadUseIsOneClearLine) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const ModelConfig config = OddDrafterConfig();
  const TempDir dir, plain_dir;
  WriteCheckpoint(dir.path(), config, 1);
  WriteCheckpoint(plain_dir.path(), OddConfig(), 1);
  ExpectLine(TestGroup::Load(dir.path(), Options(), 2).status(), kInvalid,
             "2 ranks for a drafter of kind eagle3; allowed: 1");
  TestGroup drafter = LoadOrDie(dir.path(), Options());
  TestGroup plain = LoadOrDie(plain_dir.path(), Options());
  Batch batch = SomeRows(config);
  ExpectLine(plain.Forward(batch).status(), kInvalid, "504 values for 7 rows");
  batch.states.pop_back();
  ExpectLine(drafter.Forward(batch).status(), kInvalid,
             "fused states of 503 values for 7 rows of a LlamaForCausalLMEagle3; allowed: 504");
  std::vector<float> fused(72);
  ExpectLine(drafter.rank(0).FuseStates(std::vector<float>(215), 1, fused.data()), kInvalid,
             "hidden states of 215 values for 1 rows; allowed: 216 a row");
  ExpectLine(plain.rank(0).FuseStates(std::vector<float>(216), 1, fused.data()),
             absl::StatusCode::kFailedPrecondition, "does not read a target's hidden states");
  EXPECT_TRUE(plain.rank(0).next_states().empty());
}

}  // namespace
}  // namespace specfabric::model
