// The hidden states that a target keeps for its drafters.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bfloat16.h"
#include "tests/model/checkpoint_writer.h"
#include "tests/model/group.h"
#include "tests/model/passes.h"

namespace specfabric::model {
namespace {

using ::testing::HasSubstr;

void Keep(TestGroup& group, int ranks, const std::vector<int32_t>& boundaries) {
  for (int rank = 0; rank < ranks; ++rank) {
    const absl::Status status = group.rank(rank).KeepStates(boundaries);
    ASSERT_TRUE(status.ok()) << status;
  }
}

Batch ChainAndTree() {
  Batch batch;
  AddChain(&batch, RandomTokens(11, 1), 0, Iota(0, 3));
  AddTree(&batch, RandomTokens(6, 2), {-1, 0, 0, 1, 2, 2}, 0, Iota(10, 2));
  return batch;
}

// What the group has kept of ChainAndTree at so many boundaries, rounded unless it is a float32
// model's.
std::vector<float> States(TestGroup& group, size_t boundaries, int rank = 0) {
  RankModel& model = group.rank(rank);
  const absl::Span<const float> states = model.states();
  if (!states.empty() || boundaries == 0) return {states.begin(), states.end()};
  const std::vector<int32_t> rows = Iota(0, ChainAndTree().rows());
  const std::vector<int32_t> columns = Iota(0, static_cast<int>(boundaries));
  std::vector<uint16_t> rounded(rows.size() * boundaries * model.config().hidden);
  const StateCopy copy = {.rows = rows, .columns = columns, .to = rounded.data()};
  EXPECT_TRUE(model.CopyStates({copy}).ok());
  std::vector<float> wide(rounded.size());
  std::transform(rounded.begin(), rounded.end(), wide.begin(), base::WidenBFloat16);
  return wide;
}

const NamedTensor& Tensor(const std::vector<NamedTensor>& tensors, const std::string& name) {
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return tensors.front();
}

// The tensors of a model without the layers from `layers` on.
std::vector<NamedTensor> LowerLayers(std::vector<NamedTensor> tensors, const ModelConfig& config,
                                     int layers) {
  for (int layer = layers; layer < config.layers; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    std::erase_if(tensors,
                  [&](const NamedTensor& tensor) { return tensor.name.starts_with(prefix); });
  }
  return tensors;
}

// head(norm(state)), as plain as can be.
std::vector<float> LogitsOf(const float* state, const ModelConfig& config,
                            const std::vector<NamedTensor>& tensors) {
  const std::vector<float>& norm = Tensor(tensors, "model.norm.weight").values;
  const std::vector<float>& head = Tensor(tensors, "lm_head.weight").values;
  double squares = 0.0;
  for (int i = 0; i < config.hidden; ++i) squares += double{state[i]} * state[i];
  const double scale = 1.0 / std::sqrt(squares / config.hidden + config.rms_epsilon);
  std::vector<float> logits;
  for (int token = 0; token < config.vocabulary; ++token) {
    double sum = 0.0;
    for (int i = 0; i < config.hidden; ++i) {
      sum += state[i] * scale * norm[i] * head[static_cast<size_t>(token) * config.hidden + i];
    }
    logits.push_back(static_cast<float>(sum));
  }
  return logits;
}

class KeptStatesTest : public ::testing::TestWithParam<DataType> {};

// The checkpoint without its upper layers ends with the hidden state of the layer that is missing
// next, and its logits are made of that.
TEST_P(KeptStatesTest, AreWhatAModelOfFewerLayersEndsWith) {
  const ModelConfig config = OddConfig();
  const size_t hidden = config.hidden;
  const std::vector<NamedTensor> tensors = RandomTensors(config, 1);
  const TempDir dir;
  WriteCheckpoint(dir.path(), config, 1);
  TestGroup whole = LoadOrDie(dir.path(), Options(GetParam()));
  Keep(whole, 1, {3, 0, 2, 1});
  const Batch batch = ChainAndTree();
  Logits(whole, batch);
  const std::vector<float> states = States(whole, 4);
  ASSERT_EQ(states.size(), batch.rows() * 4 * hidden);
  const auto state = [&](int row, int place) { return &states[(row * 4 + place) * hidden]; };

  for (const auto& [layers, place] : {std::pair{1, 3}, {2, 2}, {3, 0}}) {
    ModelConfig lower = config;
    lower.layers = layers;
    const TempDir lower_dir;
    WriteCheckpoint(lower_dir.path(), lower, /*seed=*/1);
    WriteSafetensors(lower_dir.File("model.safetensors"), LowerLayers(tensors, config, layers),
                     DataType::kFloat32);
    TestGroup group = LoadOrDie(lower_dir.path(), Options(GetParam()));
    Keep(group, 1, {layers});
    const LogitRows logits = Logits(group, batch);
    const std::vector<float> last = States(group, 1);
    for (int row = 0; row < batch.rows(); ++row) {
      const std::vector<float> got(state(row, place), state(row, place) + hidden);
      EXPECT_EQ(got, std::vector<float>(&last[row * hidden], &last[row * hidden] + hidden));
      EXPECT_LT(MaxDifference({LogitsOf(got.data(), config, tensors)}, {logits[row]}),
                GetParam() == DataType::kFloat32 ? 1e-4 : 0.2);
    }
  }
  const std::vector<float>& embedding = Tensor(tensors, "model.embed_tokens.weight").values;
  for (int row = 0; row < batch.rows(); ++row) {
    const float* token = &embedding[batch.tokens[row] * hidden];
    for (size_t i = 0; i < hidden; ++i) {
      ASSERT_NEAR(state(row, 1)[i], token[i], GetParam() == DataType::kFloat32 ? 0.0 : 0.02);
    }
  }
}

TEST_P(KeptStatesTest, RanksChangeNoBitAndKeepingChangesNoLogit) {
  const ModelConfig config = OddConfig();
  const TempDir dir;
  WriteCheckpoint(dir.path(), config, 2);
  Batch batch = ChainAndTree();
  batch.logit_rows = {0, 5, 16};
  TestGroup plain = LoadOrDie(dir.path(), Options(GetParam()));
  const LogitRows want = Logits(plain, batch);
  EXPECT_TRUE(States(plain, 0).empty());
  for (const std::vector<int32_t>& boundaries : {std::vector<int32_t>{1}, {2, 0}, {1, 3, 1}}) {
    Keep(plain, 1, boundaries);
    EXPECT_EQ(Logits(plain, batch), want);
    const std::vector<float> states = States(plain, boundaries.size());
    EXPECT_EQ(states.size(), batch.rows() * boundaries.size() * config.hidden);
    TestGroup two = LoadOrDie(dir.path(), Options(GetParam()), 2);
    Keep(two, 2, boundaries);
    EXPECT_EQ(Logits(two, batch), want);
    EXPECT_EQ(States(two, boundaries.size(), 0), states);
    EXPECT_EQ(States(two, boundaries.size(), 1), states);
  }
  Keep(plain, 1, {});
  EXPECT_EQ(Logits(plain, batch), want);
  EXPECT_TRUE(States(plain, 0).empty());
}

TEST_P(KeptStatesTest, CopiesAreRounded) {
  const ModelConfig config = OddConfig();
  const size_t hidden = config.hidden;
  const TempDir dir;
  WriteCheckpoint(dir.path(), config, 2);
  TestGroup group = LoadOrDie(dir.path(), Options(GetParam()));
  Keep(group, 1, {3, 0, 1});
  Logits(group, ChainAndTree());
  const std::vector<float> states = States(group, 3);
  const std::vector<std::vector<int32_t>> rows = {{16, 2, 2}, {}, {5}},
                                          columns = {{2, 0}, {1}, {1}};
  std::vector<std::vector<uint16_t>> copied(rows.size());
  std::vector<StateCopy> copies;
  for (size_t i = 0; i < rows.size(); ++i) {
    copied[i].resize(rows[i].size() * columns[i].size() * hidden);
    copies.push_back({.rows = rows[i], .columns = columns[i], .to = copied[i].data()});
  }
  ASSERT_TRUE(group.rank(0).CopyStates(copies).ok());
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<uint16_t> want;
    for (int32_t row : rows[i]) {
      for (int32_t column : columns[i]) {
        const float* from = &states[(row * 3 + column) * hidden];
        std::transform(from, from + hidden, std::back_inserter(want), base::RoundToBFloat16);
      }
    }
    EXPECT_EQ(copied[i], want);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, KeptStatesTest,
                         ::testing::Values(DataType::kFloat32, DataType::kBFloat16),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST(KeepStatesTest, WhatCannotBeKeptIsOneClearLine) {
  const TempDir dir;
  WriteCheckpoint(dir.path(), OddConfig(), 3);
  RankOptions options = Options(DataType::kFloat32);
  TestGroup group = LoadOrDie(dir.path(), options);
  for (int32_t boundary : {-1, 4}) {
    const absl::Status status = group.rank(0).KeepStates({0, boundary});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("of 3 layers; allowed: 0 to 3"));
  }
  options.pipeline_stages = 2;
  TestGroup stages = LoadOrDie(dir.path(), options, 2);
  EXPECT_TRUE(stages.rank(0).KeepStates({}).ok());
  const absl::Status status = stages.rank(0).KeepStates({1});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 pipeline stages"));
}

}  // namespace
}  // namespace specfabric::model
