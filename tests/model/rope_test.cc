#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/model/checkpoint_writer.h"

namespace specfabric::model {
namespace {

using Json = nlohmann::json;

// What transformers computes (tests/model/make_rope_golden.py).
Json Golden() { return Json::parse(ReadFile("tests/model/rope_golden.json")); }

// Through config.json, so that the spelling is read as well.
RopeConfig ReadRope(const Json& rope) {
  const TempDir dir;
  Json config = {{"architectures", {"LlamaForCausalLM"}},
                 {"vocab_size", 10},
                 {"hidden_size", 64},
                 {"intermediate_size", 64},
                 {"num_hidden_layers", 1},
                 {"num_attention_heads", 4},
                 {"max_position_embeddings", 131072},
                 {"rope_parameters", rope}};
  WriteFile(dir.File("config.json"), config.dump());
  const absl::StatusOr<ModelConfig> read = LoadModelConfig(dir.path());
  EXPECT_TRUE(read.ok()) << read.status();
  return read.ok() ? read->rope : RopeConfig{};
}

TEST(RopeTest, FrequenciesAreThoseOfTransformers) {
  const Json golden = Golden();
  ASSERT_GE(golden["cases"].size(), 8u);
  for (const Json& want : golden["cases"]) {
    SCOPED_TRACE(want["rope"].dump());
    const int head_dim = want["head_dim"];
    const RopeTable table = MakeRopeTable(ReadRope(want["rope"]), head_dim);
    EXPECT_NEAR(table.attention_factor, want["attention_factor"].get<double>(), 1e-6);
    ASSERT_EQ(table.inverse_frequencies.size(), static_cast<size_t>(head_dim / 2));
    for (int i = 0; i < head_dim / 2; ++i) {
      const double frequency = want["inverse_frequencies"][i];
      EXPECT_NEAR(table.inverse_frequencies[i], frequency, 1e-6 * frequency) << i;
    }
  }
}

TEST(RopeTest, AnglesAreThoseOfTransformers) {
  const Json golden = Golden();
  const auto positions = golden["positions"].get<std::vector<int32_t>>();
  for (const Json& want : golden["cases"]) {
    SCOPED_TRACE(want["rope"].dump());
    const int half = want["head_dim"].get<int>() / 2;
    const RopeTable table = MakeRopeTable(ReadRope(want["rope"]), 2 * half);
    std::vector<float> cosines, sines;
    RopeAngles(table, positions, &cosines, &sines);
    ASSERT_EQ(cosines.size(), positions.size() * half);
    for (size_t p = 0; p < positions.size(); ++p) {
      // A frequency's last bit turns a far position by this much.
      const double tolerance = 2e-6 + 1.5e-7 * positions[p];
      for (int i = 0; i < half; ++i) {
        EXPECT_NEAR(cosines[p * half + i], want["cosines"][p][i].get<double>(), tolerance);
        EXPECT_NEAR(sines[p * half + i], want["sines"][p][i].get<double>(), tolerance);
      }
    }
  }
}

TEST(RopeTest, RotationTurnsPairsAndKeepsLengths) {
  const std::vector<float> cosines = {std::cos(0.3f), std::cos(1.1f)};
  const std::vector<float> sines = {std::sin(0.3f), std::sin(1.1f)};
  std::vector<float> head = {1.0f, 2.0f, -0.5f, 3.0f};
  Rotate(cosines.data(), sines.data(), 4, head.data());
  EXPECT_FLOAT_EQ(head[0], 1.0f * cosines[0] + 0.5f * sines[0]);
  EXPECT_FLOAT_EQ(head[2], -0.5f * cosines[0] + 1.0f * sines[0]);
  EXPECT_NEAR(head[1] * head[1] + head[3] * head[3], 13.0f, 1e-5);
}

}  // namespace
}  // namespace specfabric::model
