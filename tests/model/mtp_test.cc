// MTP drafters on CPUs. What their numbers are is compared with another implementation in
// tests/checkpoints; here: which checkpoints are such drafters, what is loaded, and that no bit
// depends on how rows are put together.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/checkpoint_tensors.h"
#include "tests/model/checkpoint_writer.h"
#include "tests/model/config_json.h"
#include "tests/model/group.h"
#include "tests/model/mtp_checkpoints.h"
#include "tests/model/passes.h"

namespace specfabric::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Tensors = std::vector<NamedTensor>;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

Json MimoJson() {
  return Json::parse(R"({
    "architectures": ["MiMoForCausalLM"], "model_type": "mimo", "vocab_size": 1000,
    "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 36, "num_attention_heads": 6,
    "num_key_value_heads": 2, "num_nextn_predict_layers": 1, "rope_theta": 640000,
    "pard_token": 3})");
}

Json SpeculatorsJson() {
  return Json::parse(R"({
    "architectures": ["MTPDraftModel"], "speculators_model_type": "mtp",
    "num_nextn_predict_layers": 1, "transformer_layer_config": {
      "model_type": "qwen3", "vocab_size": 1000, "hidden_size": 96, "intermediate_size": 200,
      "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
      "layer_types": ["full_attention", "full_attention"]}})");
}

absl::StatusOr<ModelConfig> LoadDraft(const Json& draft, const Json& target) {
  const TempDir draft_dir, target_dir;
  WriteFile(draft_dir.File("config.json"), draft.dump());
  WriteFile(target_dir.File("config.json"), target.dump(2));
  return LoadDraftConfig(draft_dir.path(), target_dir.path());
}

void ExpectLine(const absl::Status& status, absl::StatusCode code, const std::string& says) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(says));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
}

TEST(MtpConfigTest, ATargetsCheckpointIsItsDrafter) {
  const absl::StatusOr<ModelConfig> config = LoadDraft(MimoJson(), MimoJson());
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_TRUE(config->states && config->states->mtp);
  EXPECT_STREQ(Name(config->states->kind), "mtp");
  EXPECT_THAT(config->states->layers, ElementsAre(36));
  EXPECT_EQ(config->states->target_hidden, 96);
  EXPECT_EQ(config->states->draft_vocabulary, 1000);
  EXPECT_TRUE(config->states->norm_output);
  EXPECT_TRUE(config->states->mtp->in_target && config->states->mtp->state_first);
  EXPECT_EQ(config->layers, 1);
  EXPECT_EQ(config->rope.theta, 640000);
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_FALSE(config->output_bias);
  EXPECT_EQ(config->mask_token, base::kNoToken) << "its rows are not masks";
}

TEST(MtpConfigTest, OtherwiseItIsAModelOfItsOwn) {
  const ModelConfig target = LoadOrDie(MimoJson());
  EXPECT_FALSE(target.states.has_value());
  EXPECT_TRUE(target.qkv_bias);
  EXPECT_EQ(target.layers, 36);
  const auto is_drafter = [](const Json& draft, const Json& target) {
    const absl::StatusOr<ModelConfig> config = LoadDraft(draft, target);
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() && config->states.has_value();
  };
  EXPECT_FALSE(is_drafter(MimoJson(), With(MimoJson(), R"({"num_hidden_layers": 48})")));
  const Json without = With(MimoJson(), R"({"num_nextn_predict_layers": 0})");
  EXPECT_FALSE(is_drafter(without, without));
  const TempDir alone;
  WriteFile(alone.File("config.json"), MimoJson().dump());
  const absl::StatusOr<ModelConfig> config = LoadDraftConfig(alone.path(), "");
  EXPECT_TRUE(config.ok() && !config->states) << config.status();
}

TEST(MtpConfigTest, ReadsSpeculatorsConfigs) {
  const ModelConfig config = LoadOrDie(SpeculatorsJson());
  ASSERT_TRUE(config.states && config.states->mtp);
  EXPECT_THAT(config.states->layers, ElementsAre(2));
  EXPECT_FALSE(config.states->mtp->in_target || config.states->mtp->state_first);
  EXPECT_TRUE(config.states->norm_output);
  EXPECT_THAT(config.states->windows, IsEmpty());
  EXPECT_EQ(config.layers, 1);
  EXPECT_TRUE(config.qk_norm);
  const ModelConfig windowed = LoadOrDie(With(SpeculatorsJson(), R"({"transformer_layer_config": {
      "sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}})"));
  EXPECT_THAT(windowed.states->windows, ElementsAre(64)) << "that of the first layer";
}

TEST(MtpConfigTest, WhatIsNotSupportedIsOneClearLine) {
  const Json qwen3 = With(MimoJson(), R"({"architectures": ["Qwen3ForCausalLM"]})");
  ExpectLine(LoadDraft(qwen3, qwen3).status(), kUnimplemented,
             "num_nextn_predict_layers '1' is not supported; allowed: 0 in a Qwen3ForCausalLM that "
             "drafts for itself, or the layers of a MiMoForCausalLM");
  const Json bad = With(MimoJson(), R"({"num_nextn_predict_layers": "one"})");
  ExpectLine(LoadDraft(bad, bad).status(), kInvalid, "num_nextn_predict_layers is \"one\"");
  for (const char* other : {"DeepseekV3ForCausalLM", "Qwen3NextForCausalLM"}) {
    Json json = MimoJson();
    json["architectures"] = {other};
    ExpectLine(LoadDraft(json, json).status(), kUnimplemented, "allowed: LlamaForCausalLM");
    ExpectLine(LoadDraft(json, json).status(), kUnimplemented, "MiMoForCausalLM");
  }
  ExpectLine(
      Load(With(SpeculatorsJson(), R"({"transformer_layer_config": {"model_type": "qwen3_next"}})"))
          .status(),
      kUnimplemented, "model_type 'qwen3_next' is not supported; allowed: llama, qwen3");
  ModelConfig drafter = LoadOrDie(SpeculatorsJson()), target = LoadOrDie(MimoJson());
  ExpectLine(ResolveDrafter(target, &drafter), kInvalid,
             "hidden state at boundary 2; allowed: that after its last layer, 36");
}

// A target with such layers, as one checkpoint.
class MimoFolder {
 public:
  explicit MimoFolder(const std::function<void(Tensors*)>& change = {}, int layers = 1) {
    WriteMimo(dir_.path(), OddMimoConfig(), 1, {.layers = layers, .change = change});
  }

  const std::string& path() const { return dir_.path(); }
  RankOptions AsDrafter(DataType dtype = DataType::kFloat32) const {
    RankOptions options = Options(dtype);
    options.target_dir = path();
    return options;
  }
  absl::Status LoadDrafter() const { return TestGroup::Load(path(), AsDrafter(), 1).status(); }

 private:
  TempDir dir_;
};

NamedTensor& Find(Tensors& tensors, const std::string& name) {
  return *std::find_if(tensors.begin(), tensors.end(),
                       [&](const NamedTensor& tensor) { return tensor.name == name; });
}

class MtpTest : public ::testing::TestWithParam<DataType> {};

TEST_P(MtpTest, RowsOfABatchDoNotChangeOneAnother) {
  const MimoFolder checkpoint;
  TestGroup group = LoadOrDie(checkpoint.path(), checkpoint.AsDrafter(GetParam()));
  const size_t hidden = group.config().hidden;
  Batch whole;
  AddChain(&whole, RandomTokens(13, 1), 0, Iota(0, 4));
  for (size_t i = 0; i < 13 * hidden; ++i) whole.states.push_back(std::sin(0.7f * i));
  const LogitRows want = Logits(group, whole);
  const absl::Span<const float> states = group.rank(0).next_states();
  const std::vector<float> next(states.begin(), states.end());
  ASSERT_EQ(next.size(), 13 * hidden);
  for (int i = 0; i < 13; ++i) {
    Batch batch;
    AddChain(&batch, {whole.tokens[i]}, i, Iota(20, 4));
    batch.states.assign(&whole.states[i * hidden], &whole.states[i * hidden] + hidden);
    EXPECT_EQ(Logits(group, batch)[0], want[i]);
    EXPECT_TRUE(std::equal(&next[i * hidden], &next[i * hidden] + hidden,
                           group.rank(0).next_states().begin()));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, MtpTest,
                         ::testing::Values(DataType::kFloat32, DataType::kBFloat16));

TEST(MtpTargetTest, ComputesWhatItComputesWithoutThem) {
  const MimoFolder checkpoint;
  const TempDir plain;
  ModelConfig qwen2 = OddMimoConfig();
  qwen2.architecture = "Qwen2ForCausalLM";
  WriteCheckpoint(plain.path(), qwen2, 1);
  TestGroup with = LoadOrDie(checkpoint.path(), Options());
  TestGroup without = LoadOrDie(plain.path(), Options());
  Batch batch;
  AddChain(&batch, RandomTokens(9, 1), 0, Iota(0, 4));
  EXPECT_EQ(Logits(with, batch), Logits(without, batch));
}

TEST(MtpLoadTest, TheFirstLayerIsRunAndFurtherOnesAreNot) {
  const MimoFolder two(
      [](Tensors* tensors) {
        const Tensors of_one = *tensors;
        for (NamedTensor tensor : of_one) {
          if (!tensor.name.starts_with("model.mtp_layers.0.")) continue;
          tensor.name.replace(0, 19, "model.mtp_layers.1.");
          tensors->push_back(std::move(tensor));
        }
      },
      /*layers=*/2);
  const absl::StatusOr<ModelConfig> config = LoadDraftConfig(two.path(), two.path());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layers, 1);
  const absl::StatusOr<OpenedCheckpoint> opened = OpenCheckpoint(two.path(), *config);
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_EQ(opened->notes.size(), 1u);
  EXPECT_THAT(opened->notes[0], HasSubstr("16 tensors, the first 'model.mtp_layers.1.final_"));
  EXPECT_TRUE(two.LoadDrafter().ok());
}

TEST(MtpLoadTest, FingerprintsTellTheTargetsNormApart) {
  const MimoFolder one, again,
      other([](Tensors* tensors) { Find(*tensors, "model.norm.weight").values[3] += 1.0f; });
  const auto fingerprint = [](const MimoFolder& checkpoint) {
    return LoadOrDie(checkpoint.path(), checkpoint.AsDrafter()).rank(0).NumericsFingerprint();
  };
  EXPECT_EQ(fingerprint(one), fingerprint(again));
  EXPECT_NE(fingerprint(one), fingerprint(other));
}

TEST(MtpLoadTest, BrokenCheckpointsAreOneClearLine) {
  Tensors sound;
  const MimoFolder whole([&](Tensors* tensors) { sound = *tensors; });
  ASSERT_TRUE(whole.LoadDrafter().ok());
  for (const NamedTensor& tensor : sound) {
    const bool read = tensor.name.starts_with("model.mtp_layers.") ||
                      tensor.name == "model.norm.weight" ||
                      tensor.name == "model.embed_tokens.weight" || tensor.name == kHeadName;
    const MimoFolder without([&](Tensors* tensors) {
      std::erase_if(*tensors, [&](const NamedTensor& each) { return each.name == tensor.name; });
    });
    const absl::Status status = without.LoadDrafter();
    EXPECT_EQ(status.ok(), !read) << tensor.name;
    if (!read) continue;
    EXPECT_THAT(std::string(status.message()), HasSubstr(tensor.name));
  }
  const auto with = [](const std::string& name) {
    return MimoFolder([&](Tensors* tensors) {
             tensors->push_back({name, {1}, {1}});
           })
        .LoadDrafter();
  };
  ExpectLine(with("model.mtp_layers.0.self_attn.q_norm.weight"), kUnimplemented, "has no place");
  ExpectLine(with("model.layers.0.self_attn.q_norm.weight"), kUnimplemented, "has no place");
  EXPECT_TRUE(with("model.other.weight").ok());

  const TempDir alone;
  Json json = SpeculatorsJson();
  json["transformer_layer_config"].update({{"vocab_size", 101}, {"hidden_size", 72}});
  WriteFile(alone.File("config.json"), json.dump());
  const ModelConfig config = LoadModelConfig(alone.path()).value();
  WriteSafetensors(alone.File("model.safetensors"), RandomTensors(config, 1), DataType::kFloat32);
  ExpectLine(TestGroup::Load(alone.path(), Options(), 1).status(), kInvalid,
             "'model.norm.weight' of the target's checkpoint, which is needed, is not given");
}

}  // namespace
}  // namespace specfabric::model
