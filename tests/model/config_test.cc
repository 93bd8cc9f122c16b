#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/model/checkpoint_writer.h"

namespace specfabric::model {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Json LlamaJson() {
  return Json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "vocab_size": 1000, "hidden_size": 96,
    "intermediate_size": 200, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5})");
}

absl::StatusOr<ModelConfig> Load(const Json& json) {
  const TempDir dir;
  WriteFile(dir.File("config.json"), json.dump());
  return LoadModelConfig(dir.path());
}

ModelConfig LoadOrDie(const Json& json) {
  absl::StatusOr<ModelConfig> config = Load(json);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value_or(ModelConfig{});
}

Json With(Json json, const char* patch) {
  json.merge_patch(Json::parse(patch));
  return json;
}

TEST(ConfigTest, ReadsLlama) {
  const ModelConfig config =
      LoadOrDie(With(LlamaJson(), R"({"eos_token_id": [2, 7], "rope_theta": 5e5,
                                      "torch_dtype": "bfloat16", "attention_bias": true})"));
  EXPECT_EQ(config.vocabulary, 1000);
  EXPECT_EQ(config.hidden, 96);
  EXPECT_EQ(config.intermediate, 200);
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.heads, 6);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.context, 4096);
  EXPECT_FLOAT_EQ(config.rms_epsilon, 1e-5f);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_TRUE(config.output_bias);
  EXPECT_FALSE(config.mlp_bias);
  EXPECT_FALSE(config.qk_norm);
  EXPECT_EQ(config.rope.kind, RopeKind::kDefault);
  EXPECT_EQ(config.rope.theta, 5e5);
  EXPECT_EQ(config.checkpoint_type, DataType::kBFloat16);
  EXPECT_THAT(config.eos_ids, ElementsAre(2, 7));
}

TEST(ConfigTest, FamiliesDifferInBiasesAndNorms) {
  const ModelConfig qwen2 =
      LoadOrDie(With(LlamaJson(), R"({"architectures": ["Qwen2ForCausalLM"]})"));
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.output_bias);
  EXPECT_FALSE(qwen2.qk_norm);
  const ModelConfig qwen3 =
      LoadOrDie(With(LlamaJson(), R"({"architectures": ["Qwen3ForCausalLM"]})"));
  EXPECT_FALSE(qwen3.qkv_bias);
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 128) << "Qwen3's head size does not follow from the hidden size";
  const ModelConfig mistral =
      LoadOrDie(With(LlamaJson(), R"({"architectures": ["MistralForCausalLM"], "head_dim": null,
                            "num_key_value_heads": null, "attention_bias": true})"));
  EXPECT_FALSE(mistral.qkv_bias);
  EXPECT_EQ(mistral.kv_heads, 6);
}

TEST(ConfigTest, GenerationConfigAddsEosIds) {
  const TempDir dir;
  WriteFile(dir.File("config.json"), With(LlamaJson(), R"({"eos_token_id": 2})").dump());
  WriteFile(dir.File("generation_config.json"), R"({"eos_token_id": [5, 2]})");
  const absl::StatusOr<ModelConfig> config = LoadModelConfig(dir.path());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->eos_ids, ElementsAre(2, 5));
}

TEST(ConfigTest, RopeSpellings) {
  // Older configs: rope_scaling with "type" or "rope_type", theta beside it.
  RopeConfig rope = LoadOrDie(With(LlamaJson(), R"({"rope_theta": 2e4, "rope_parameters": null,
                                   "rope_scaling": {"type": "linear", "factor": 4.0}})"))
                        .rope;
  EXPECT_EQ(rope.kind, RopeKind::kLinear);
  EXPECT_EQ(rope.factor, 4.0);
  EXPECT_EQ(rope.theta, 2e4);

  // transformers 5: everything inside rope_parameters.
  rope = LoadOrDie(With(LlamaJson(), R"({"rope_scaling": null, "rope_parameters": {
             "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
             "high_freq_factor": 4.0, "original_max_position_embeddings": 512}})"))
             .rope;
  EXPECT_EQ(rope.kind, RopeKind::kLlama3);
  EXPECT_EQ(rope.theta, 5e5);
  EXPECT_EQ(rope.original_context, 512);

  // The original context may be left out, or lie beside the object; yarn's factor follows from it.
  rope = LoadOrDie(With(LlamaJson(), R"({"original_max_position_embeddings": 1024,
             "rope_scaling": {"rope_type": "yarn", "mscale": 0.7, "mscale_all_dim": 0.5,
                              "truncate": false}})"))
             .rope;
  EXPECT_EQ(rope.kind, RopeKind::kYarn);
  EXPECT_EQ(rope.original_context, 1024);
  EXPECT_EQ(rope.factor, 4.0);
  EXPECT_EQ(rope.mscale, 0.7);
  EXPECT_FALSE(rope.truncate);

  // One object for each layer type.
  rope = LoadOrDie(With(LlamaJson(), R"({"rope_parameters": {"full_attention":
             {"rope_type": "default", "rope_theta": 1e6}}})"))
             .rope;
  EXPECT_EQ(rope.kind, RopeKind::kDefault);
  EXPECT_EQ(rope.theta, 1e6);

  EXPECT_EQ(LoadOrDie(With(LlamaJson(), R"({"rope_parameters": {}})")).rope.theta, 10000.0);
}

TEST(ConfigTest, SlidingWindowsThatCannotMatterAreFine) {
  for (const char* patch :
       {R"({"architectures": ["MistralForCausalLM"], "sliding_window": 4096})",
        R"({"architectures": ["MistralForCausalLM"], "sliding_window": null})",
        R"({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64,
            "use_sliding_window": false})",
        R"({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64,
            "use_sliding_window": true, "max_window_layers": 2})",
        R"({"architectures": ["Qwen3ForCausalLM"], "sliding_window": 64, "use_sliding_window": true,
            "layer_types": ["full_attention", "full_attention"]})",
        R"({"sliding_window": 64})"}) {
    EXPECT_TRUE(Load(With(LlamaJson(), patch)).ok()) << patch;
  }
}

struct BadCase {
  const char* patch;
  absl::StatusCode code;
  std::vector<std::string> says;  // what was given, what is allowed
};

TEST(ConfigTest, BadInputIsOneClearLine) {
  const std::vector<BadCase> cases = {
      {R"({"architectures": ["GPT2LMHeadModel"]})",
       absl::StatusCode::kUnimplemented,
       {"GPT2LMHeadModel", "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM"}},
      {R"({"architectures": []})", absl::StatusCode::kInvalidArgument, {"LlamaForCausalLM"}},
      {R"({"architectures": "LlamaForCausalLM"})",
       absl::StatusCode::kInvalidArgument,
       {"architectures"}},
      {R"({"hidden_size": null})", absl::StatusCode::kInvalidArgument, {"hidden_size is missing"}},
      {R"({"hidden_size": 96.5})", absl::StatusCode::kInvalidArgument, {"96.5", "integer"}},
      {R"({"hidden_size": -96})", absl::StatusCode::kInvalidArgument, {"-96", "integer"}},
      {R"({"num_hidden_layers": 99999999999})",
       absl::StatusCode::kInvalidArgument,
       {"99999999999"}},
      {R"({"hidden_size": [96]})", absl::StatusCode::kInvalidArgument, {"a list", "integer"}},
      {R"({"vocab_size": "many"})", absl::StatusCode::kInvalidArgument, {"\"many\""}},
      {R"({"num_key_value_heads": 4})",
       absl::StatusCode::kInvalidArgument,
       {"num_attention_heads is 6", "4"}},
      {R"({"head_dim": 15})", absl::StatusCode::kInvalidArgument, {"15", "even"}},
      {R"({"head_dim": 512})", absl::StatusCode::kInvalidArgument, {"512", "256"}},
      {R"({"hidden_act": "gelu"})", absl::StatusCode::kUnimplemented, {"gelu", "silu"}},
      {R"({"tie_word_embeddings": "yes"})", absl::StatusCode::kInvalidArgument, {"true, false"}},
      {R"({"rms_norm_eps": 1e60})", absl::StatusCode::kInvalidArgument, {"rms_norm_eps", "1e+60"}},
      {R"({"rms_norm_eps": 1e-60})", absl::StatusCode::kInvalidArgument, {"rms_norm_eps", "1e-60"}},
      {R"({"rms_norm_eps": 0})", absl::StatusCode::kInvalidArgument, {"rms_norm_eps", "above 0"}},
      {R"({"eos_token_id": -3})", absl::StatusCode::kInvalidArgument, {"eos_token_id"}},
      {R"({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})",
       absl::StatusCode::kUnimplemented,
       {"dynamic", "default, linear, llama3, yarn"}},
      {R"({"rope_scaling": {"rope_type": "linear"}})",
       absl::StatusCode::kInvalidArgument,
       {"factor is missing"}},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
                            "high_freq_factor": 4}})",
       absl::StatusCode::kInvalidArgument,
       {"high_freq_factor is 4", "above low_freq_factor"}},
      {R"({"rope_scaling": {"rope_type": "linear", "factor": -1}})",
       absl::StatusCode::kInvalidArgument,
       {"-1", "above 0"}},
      {R"({"rope_scaling": 3})", absl::StatusCode::kInvalidArgument, {"not an object"}},
      {R"({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}})",
       absl::StatusCode::kUnimplemented,
       {"partial_rotary_factor", "0.5"}},
      {R"({"architectures": ["MistralForCausalLM"], "sliding_window": 512})",
       absl::StatusCode::kUnimplemented,
       {"sliding_window '512'", "4096"}},
      {R"({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 512,
           "use_sliding_window": true, "max_window_layers": 1})",
       absl::StatusCode::kUnimplemented,
       {"sliding_window '512'"}},
      {R"({"architectures": ["Qwen3ForCausalLM"], "sliding_window": 512, "use_sliding_window": true,
           "layer_types": ["full_attention", "sliding_attention"]})",
       absl::StatusCode::kUnimplemented,
       {"sliding_window '512'"}},
  };
  for (const BadCase& bad : cases) {
    const absl::Status status = Load(With(LlamaJson(), bad.patch)).status();
    EXPECT_EQ(status.code(), bad.code) << bad.patch << "\n" << status;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
    EXPECT_THAT(std::string(status.message()), HasSubstr("config.json"));
    for (const std::string& text : bad.says) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(text)) << bad.patch;
    }
  }
}

TEST(ConfigTest, MissingOrMalformedFiles) {
  EXPECT_EQ(LoadModelConfig("/nonexistent/model").status().code(), absl::StatusCode::kNotFound);
  const TempDir dir;
  EXPECT_EQ(LoadModelConfig(dir.path()).status().code(), absl::StatusCode::kNotFound);
  for (const char* text : {"", "{", "[1, 2]", "{\"architectures\": 1e999}", "\xff\xfe"}) {
    WriteFile(dir.File("config.json"), text);
    EXPECT_EQ(LoadModelConfig(dir.path()).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
  WriteFile(dir.File("config.json"), LlamaJson().dump());
  WriteFile(dir.File("generation_config.json"), "{\"eos_token_id\": \"x\"}");
  EXPECT_THAT(std::string(LoadModelConfig(dir.path()).status().message()),
              HasSubstr("generation_config.json"));
}

TEST(ConfigTest, DataTypes) {
  EXPECT_EQ(*ParseDataType("float32"), DataType::kFloat32);
  EXPECT_EQ(*ParseDataType("bfloat16"), DataType::kBFloat16);
  EXPECT_STREQ(Name(*ParseDataType("bfloat16")), "bfloat16");
  EXPECT_THAT(std::string(ParseDataType("fp8").status().message()),
              HasSubstr("'fp8' is not known; allowed: float32, bfloat16"));
}

}  // namespace
}  // namespace specfabric::model
