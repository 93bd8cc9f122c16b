// What LoadModelConfig and ResolveDrafter make of the config.json of drafters that read hidden
// states.

#include "model/checkpoint/drafter_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/checkpoint/config.h"
#include "tests/model/config_json.h"

namespace specfabric::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Json FlatJson() {
  return Json::parse(R"({
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "vocab_size": 1000,
    "draft_vocab_size": 300, "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 1,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 20, "rope_theta": 5e5,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": true})");
}

Json NestedJson() {
  return Json::parse(R"({
    "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3",
    "draft_vocab_size": 300, "norm_before_residual": false, "target_hidden_size": null,
    "dtype": "bfloat16",
    "speculators_config": {"algorithm": "eagle3", "default_proposal_method": "greedy"},
    "transformer_layer_config": {
      "model_type": "llama", "vocab_size": 1000, "hidden_size": 96, "intermediate_size": 200,
      "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
      "rope_parameters": {"rope_type": "default", "rope_theta": 3e5}}})");
}

Json DeepSpecJson() {
  return Json::parse(R"({
    "architectures": ["Qwen3Eagle3Model"], "model_type": "qwen3", "vocab_size": 1000,
    "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 1, "num_attention_heads": 6,
    "num_key_value_heads": 2, "num_target_layers": 36, "target_layer_ids": [1, 9, 17, 25, 33],
    "ttt_length": 7})");
}

ModelConfig LoadDrafter(const Json& json) {
  ModelConfig loaded = LoadOrDie(json);
  EXPECT_TRUE(loaded.states.has_value());
  if (!loaded.states) loaded.states.emplace();
  return loaded;
}

std::vector<int32_t> LayersOf(const Json& json, const char* patch) {
  return LoadDrafter(With(json, patch)).states->layers;
}

TEST(DrafterConfigTest, ReadsFlatConfigs) {
  const ModelConfig config = LoadDrafter(FlatJson());
  EXPECT_EQ(config.vocabulary, 1000);
  EXPECT_EQ(config.layers, 1);
  EXPECT_EQ(config.head_dim, 20);
  EXPECT_EQ(config.rope.theta, 5e5);
  EXPECT_FALSE(config.qk_norm);
  EXPECT_FALSE(config.tied_embeddings) << "a head that is absent is the target's";
  const StateDrafter& states = *config.states;
  EXPECT_STREQ(Name(states.kind), "eagle3");
  EXPECT_THAT(states.layers, IsEmpty());
  EXPECT_EQ(states.target_hidden, 96);
  EXPECT_EQ(states.draft_vocabulary, 300);
  EXPECT_FALSE(states.norm_before_residual || states.norm_before_fc || states.fc_norm ||
               states.norm_output || states.fc_bias);
  EXPECT_EQ(LoadDrafter(With(FlatJson(), R"({"draft_vocab_size": null})")).states->draft_vocabulary,
            1000);
  EXPECT_EQ(LoadDrafter(With(FlatJson(), R"({"target_hidden_size": 128})")).states->target_hidden,
            128);
}

TEST(DrafterConfigTest, ReadsNestedConfigs) {
  const ModelConfig config = LoadDrafter(NestedJson());
  EXPECT_EQ(config.vocabulary, 1000);
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rope.theta, 3e5);
  EXPECT_EQ(config.checkpoint_type, DataType::kBFloat16);
  EXPECT_EQ(config.states->target_hidden, 96);
  EXPECT_FALSE(config.states->norm_before_residual);
  EXPECT_TRUE(LoadDrafter(With(NestedJson(), R"({"norm_before_residual": null})"))
                  .states->norm_before_residual)
      << "as servers take it that is not said";
  const ModelConfig qwen3 = LoadDrafter(With(NestedJson(), R"({
      "architectures": ["Eagle3Speculator"], "transformer_layer_config": {"model_type": "qwen3"}})"));
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 128) << "Qwen3's default";
}

TEST(DrafterConfigTest, ReadsDeepSpecConfigs) {
  const ModelConfig config = LoadDrafter(DeepSpecJson());
  EXPECT_TRUE(config.qk_norm);
  EXPECT_EQ(config.states->draft_vocabulary, 1000);
  EXPECT_THAT(config.states->layers, ElementsAre(2, 10, 18, 26, 34));
}

TEST(DrafterConfigTest, FlagsAreAlsoInEagleConfig) {
  const StateDrafter at_top =
      *LoadDrafter(With(NestedJson(), R"({"norm_before_residual": true, "norm_before_fc": true,
                                        "norm_output": true})"))
           .states;
  EXPECT_TRUE(at_top.norm_before_residual && at_top.norm_before_fc && at_top.norm_output);
  const StateDrafter nested =
      *LoadDrafter(With(FlatJson(), R"({"bias": true, "eagle_config": {"norm_before_residual": true,
                                      "fc_norm": true, "return_hidden_post_norm": true}})"))
           .states;
  EXPECT_TRUE(nested.norm_before_residual && nested.fc_norm && nested.norm_output);
  EXPECT_TRUE(nested.fc_bias);
}

// The same numbers mean different layers in different fields.
TEST(DrafterConfigTest, LayerIdsMeanWhatTheirFieldSays) {
  EXPECT_THAT(LayersOf(FlatJson(), R"({"eagle_aux_hidden_state_layer_ids": [1, 9, 21]})"),
              ElementsAre(1, 9, 21));
  EXPECT_THAT(LayersOf(NestedJson(), R"({"eagle_aux_hidden_state_layer_ids": [2, 18, 33, 36]})"),
              ElementsAre(2, 18, 33, 36));
  EXPECT_THAT(LayersOf(NestedJson(), R"({"aux_hidden_state_layer_ids": [1, 5]})"),
              ElementsAre(1, 5));
  // SpecForge's and SGLang's count the layers; those of gpt-oss-120b-Eagle3-v3 do not.
  EXPECT_THAT(LayersOf(FlatJson(),
                       R"({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 32]}})"),
              ElementsAre(2, 18, 33));
  EXPECT_THAT(LayersOf(FlatJson(),
                       R"({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [24, 30, 36]}})"),
              ElementsAre(24, 30, 36));
  EXPECT_THAT(LayersOf(DeepSpecJson(), R"({"target_layer_ids": [-1, 4, 7]})"),
              ElementsAre(0, 5, 8));
  // What is not nested goes first, as in vLLM; an empty list says nothing.
  EXPECT_THAT(LayersOf(FlatJson(),
                       R"({"eagle_aux_hidden_state_layer_ids": [2, 15, 27],
                           "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 14, 26]}})"),
              ElementsAre(2, 15, 27));
  EXPECT_THAT(LayersOf(FlatJson(),
                       R"({"eagle_aux_hidden_state_layer_ids": [],
                           "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 14, 26]}})"),
              ElementsAre(2, 15, 27));
}

TEST(DrafterConfigTest, LayersHaveWindows) {
  const ModelConfig config = LoadDrafter(With(NestedJson(), R"({"transformer_layer_config": {
      "sliding_window": 512, "layer_types": ["full_attention", "sliding_attention"]}})"));
  EXPECT_THAT(config.states->windows, ElementsAre(0, 512));
  EXPECT_THAT(config.sliding_window, 0);
}

TEST(DrafterConfigTest, OtherModelsAreNone) {
  const absl::StatusOr<ModelConfig> config =
      Load(With(FlatJson(), R"({"architectures": ["LlamaForCausalLM"]})"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->states.has_value());
}

struct BadCase {
  Json json;
  absl::StatusCode code;
  std::vector<std::string> says;
};

TEST(DrafterConfigTest, BadInputIsOneClearLine) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  const auto flat = [](const char* patch) { return With(FlatJson(), patch); };
  const auto nested = [](const char* patch) { return With(NestedJson(), patch); };
  const std::vector<BadCase> cases = {
      {flat(R"({"draft_vocab_size": 1001})"), kInvalid, {"1001", "allowed: 1 to vocab_size, 1000"}},
      {flat(R"({"draft_vocab_size": 0})"), kInvalid, {"draft_vocab_size is 0", "integer from 1"}},
      {flat(R"({"target_hidden_size": "wide"})"), kInvalid, {"\"wide\"", "integer"}},
      {flat(R"({"norm_before_fc": true, "fc_norm": true})"), kInvalid, {"fc_norm", "allowed: one"}},
      {flat(R"({"norm_output": 1})"), kInvalid, {"norm_output is 1", "true, false"}},
      {flat(R"({"eagle_config": 7})"), kInvalid, {"eagle_config is not an object"}},
      {flat(R"({"eagle_config": {"norm_before_fc": "x"}})"),
       kInvalid,
       {"eagle_config: norm_before_fc is \"x\""}},
      {flat(R"({"eagle_aux_hidden_state_layer_ids": 3})"), kInvalid, {"is 3", "list of integers"}},
      {flat(R"({"eagle_aux_hidden_state_layer_ids": [1, -1]})"), kInvalid, {"a list", "from 0 to"}},
      {flat(R"({"eagle_aux_hidden_state_layer_ids": [1, 2.5]})"), kInvalid, {"list of integers"}},
      {flat(R"({"target_layer_ids": [-2]})"), kInvalid, {"target_layer_ids", "from -1 to"}},
      {flat(R"({"target_hidden_size": 16000000, "target_layer_ids": [1, 2]})"),
       kInvalid,
       {"target_hidden_size", "2 layers"}},
      {flat(R"({"num_aux_hidden_states": 5})"), kInvalid, {"num_aux_hidden_states is 5", "3"}},
      {flat(R"({"hidden_size": null})"), kInvalid, {"config.json: hidden_size is missing"}},
      {flat(R"({"pard_token": 7})"), kUnimplemented, {"pard_token '7'", "P-EAGLE"}},
      {flat(R"({"eagle_config": {"mask_token_id": 7}})"), kUnimplemented, {"7", "P-EAGLE"}},
      {flat(R"({"eagle_config": {"use_aux_hidden_state": false}})"),
       kUnimplemented,
       {"use_aux_hidden_state 'false'", "true"}},
      {flat(R"({"eagle_config": {"eh_proj_before_attn": true}})"),
       kUnimplemented,
       {"eh_proj_before_attn 'true'"}},
      {With(DeepSpecJson(), R"({"num_hidden_layers": 2})"),
       kUnimplemented,
       {"num_hidden_layers '2'", "1 of a Qwen3Eagle3Model"}},
      {nested(R"({"transformer_layer_config": null})"),
       kInvalid,
       {"transformer_layer_config is missing"}},
      {nested(R"({"transformer_layer_config": [1]})"), kInvalid, {"is not an object"}},
      {nested(R"({"transformer_layer_config": {"hidden_size": null}})"),
       kInvalid,
       {"transformer_layer_config: hidden_size is missing"}},
      {nested(R"({"transformer_layer_config": {"model_type": "qwen3_next"}})"),
       kUnimplemented,
       {"model_type 'qwen3_next'", "llama, qwen3"}},
      {nested(R"({"transformer_layer_config": {"layer_types": ["sliding_attention"]}})"),
       kInvalid,
       {"transformer_layer_config: layer_types", "2 layers"}},
      {flat(R"({"architectures": ["PEagleSpeculator"]})"),
       kUnimplemented,
       {"PEagleSpeculator", "LlamaForCausalLMEagle3", "Eagle3DraftModel", "Qwen3Eagle3Model"}},
  };
  for (const BadCase& bad : cases) {
    const absl::Status status = Load(bad.json).status();
    EXPECT_EQ(status.code(), bad.code) << bad.json << "\n" << status;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
    EXPECT_THAT(std::string(status.message()), HasSubstr("config.json"));
    for (const std::string& text : bad.says) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(text)) << bad.json;
    }
  }
}

ModelConfig Target() {
  ModelConfig target;
  target.vocabulary = 1000;
  target.hidden = 96;
  target.layers = 36;
  return target;
}

TEST(ResolveDrafterTest, FillsInTheUsualLayers) {
  ModelConfig drafter = LoadDrafter(FlatJson());
  EXPECT_TRUE(ResolveDrafter(Target(), &drafter).ok());
  EXPECT_THAT(drafter.states->layers, ElementsAre(2, 18, 33));
  ModelConfig says = LoadDrafter(DeepSpecJson());
  EXPECT_TRUE(ResolveDrafter(Target(), &says).ok());
  EXPECT_THAT(says.states->layers, ElementsAre(2, 10, 18, 26, 34));
}

TEST(ResolveDrafterTest, WhatDoesNotFitIsOneClearLine) {
  const auto expect = [](const ModelConfig& target, ModelConfig drafter, const char* says) {
    const absl::Status status = ResolveDrafter(target, &drafter);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(says));
  };
  const ModelConfig drafter = LoadDrafter(FlatJson());
  ModelConfig target = Target();
  target.hidden = 128;
  expect(target, drafter, "hidden size 96; allowed: the target's, 128");
  target = Target();
  target.vocabulary = 1024;
  expect(target, drafter, "vocabulary 1000; allowed: the target's, 1024");
  target = Target();
  target.layers = 2;
  expect(target, drafter, "boundary -1; allowed: 0 to its number of layers, 2");
  target.layers = 36;
  ModelConfig last = drafter;
  last.states->layers = {24, 30, 36};
  EXPECT_TRUE(ResolveDrafter(target, &last).ok());
  last.states->layers = {24, 30, 37};
  expect(target, last, "boundary 37; allowed: 0 to its number of layers, 36");
}

}  // namespace
}  // namespace specfabric::model
