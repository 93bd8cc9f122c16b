#include "bench/model/random_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/model/bench_model.h"
#include "model/checkpoint/checkpoint_tensors.h"
#include "model/rank_model.h"

namespace specfabric::model {
namespace {

std::unique_ptr<BenchCheckpoint> Open(const std::string& name) {
  auto checkpoint = BenchCheckpoint::Open(name);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return *std::move(checkpoint);
}

TEST(RandomModelTest, IsACheckpointThatLoadsAndComputes) {
  const auto checkpoint = Open("random:tiny");
  const auto ranks = MakeThreadCommunicators(1);
  RankOptions options;
  options.kv_blocks = 4;
  const auto model = RankModel::Load(checkpoint->folder(), options, ranks[0].get());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->config().head_dim, 64);
  const auto logits = (*model)->Forward(ChainOf(3, 5, 4));
  ASSERT_TRUE(logits.ok()) << logits.status();
  for (int row = 0; row < 3; ++row) {
    const absl::Span<const float> values = logits->row(row);
    EXPECT_TRUE(
        std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); }));
    // Not all the same, as they would be of weights that are 0.
    EXPECT_GT(*std::max_element(values.begin(), values.end()), 0.1f);
    EXPECT_LT(*std::min_element(values.begin(), values.end()), -0.1f);
  }
}

TEST(RandomModelTest, EveryProcessHasTheSameWeights) {
  const auto one = Open("random:tiny"), other = Open("random:tiny");
  EXPECT_NE(one->folder(), other->folder());
  const auto first = Checkpoint::Open(one->folder()), second = Checkpoint::Open(other->folder());
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->ContentHash(), second->ContentHash());
}

TEST(RandomModelTest, PassesReadAllMatricesOnce) {
  const auto checkpoint = Open("random:tiny");
  const auto config = LoadModelConfig(checkpoint->folder());
  const auto opened = Checkpoint::Open(checkpoint->folder());
  ASSERT_TRUE(config.ok() && opened.ok());
  int64_t bytes = 0;  // the embedding is the head too
  for (const auto& [name, tensor] : opened->tensors()) {
    if (tensor->shape.size() == 2) bytes += tensor->bytes;
  }
  EXPECT_EQ(PassWeightBytes(*config, DataType::kBFloat16), bytes);
  EXPECT_EQ(PassWeightBytes(*config, DataType::kFloat32), 2 * bytes);
}

TEST(RandomModelTest, TheFolderEndsWithIt) {
  auto checkpoint = Open("random:tiny");
  const std::string folder = checkpoint->folder();
  EXPECT_TRUE(std::filesystem::exists(folder + "/model.safetensors"));
  checkpoint.reset();
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST(RandomModelTest, AnyOtherNameIsAFolder) {
  EXPECT_EQ(Open("models/target")->folder(), "models/target");
}

TEST(RandomModelTest, UnknownShapesAreRefused) {
  const auto checkpoint = BenchCheckpoint::Open("random:llama-9b");
  EXPECT_EQ(checkpoint.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(checkpoint.status().message()),
              testing::AllOf(testing::HasSubstr("random:llama-9b"),
                             testing::HasSubstr("random:llama-8b, random:qwen3-8b")));
}

}  // namespace
}  // namespace specfabric::model
