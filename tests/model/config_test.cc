#include "model/checkpoint/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/model/checkpoint_writer.h"
#include "tests/model/config_json.h"

namespace specfabric::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Json LlamaJson() {
  return Json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "vocab_size": 1000, "hidden_size": 96,
    "intermediate_size": 200, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5})");
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
      LoadOrDie(With(LlamaJson(), R"({"architectures": ["MistralForCausalLM"],
                                      "attention_bias": true})"));
  EXPECT_FALSE(mistral.qkv_bias);
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
       {R"({"sliding_window": 0})",
        R"({"architectures": ["Qwen2ForCausalLM"], "num_attention_heads": 64, "hidden_size": 512,
            "max_window_layers": 0})",
        R"({"architectures": ["MistralForCausalLM"]})",  // by default 4096, which is the context
        R"({"architectures": ["MistralForCausalLM"], "sliding_window": 4096})",
        R"({"architectures": ["MistralForCausalLM"], "sliding_window": null})",
        R"({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64,
            "use_sliding_window": false})",
        R"({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64,
            "use_sliding_window": true, "max_window_layers": 2})",
        R"({"architectures": ["Qwen3ForCausalLM"], "sliding_window": 64, "use_sliding_window": true,
            "layer_types": ["full_attention", "full_attention"]})",
        R"({"sliding_window": 64})"}) {
    const absl::StatusOr<ModelConfig> config = Load(With(LlamaJson(), patch));
    ASSERT_TRUE(config.ok()) << patch << config.status();
    const absl::StatusOr<int32_t> context = ServedContext(*config, 0);
    ASSERT_TRUE(context.ok()) << patch << context.status();
    EXPECT_EQ(*context, 4096) << patch;
  }
}

// A window bounds the context that is served, not the one that the model has.
TEST(ConfigTest, ShortWindowsAreServedWithShortContexts) {
  const std::vector<const char*> patches = {
      R"({"architectures": ["MistralForCausalLM"], "sliding_window": 512})",
      R"({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 512,
          "use_sliding_window": true, "max_window_layers": 1})",
      R"({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 512,
          "use_sliding_window": true, "max_window_layers": 0})",
      R"({"architectures": ["Qwen3ForCausalLM"], "sliding_window": 512, "use_sliding_window": true,
          "layer_types": ["full_attention", "sliding_attention"]})"};
  for (const char* patch : patches) {
    const absl::StatusOr<ModelConfig> config = Load(With(LlamaJson(), patch));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->context, 4096);
    EXPECT_EQ(ServedContext(*config, 512).value_or(0), 512) << patch;
    EXPECT_EQ(ServedContext(*config, 100).value_or(0), 100) << patch;
    for (const int32_t most : {0, 513, 4096, 10000}) {
      const absl::Status status = ServedContext(*config, most).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << patch;
      EXPECT_THAT(std::string(status.message()), HasSubstr("sliding_window 512 is shorter"));
      EXPECT_THAT(std::string(status.message()), HasSubstr("--max_context=512"));
    }
  }
  const ModelConfig plain = LoadOrDie(LlamaJson());
  EXPECT_EQ(ServedContext(plain, 0).value_or(0), 4096);
  EXPECT_EQ(ServedContext(plain, 5000).value_or(0), 4096);
}

// What scripts compare with transformers is in tests/checkpoints/test_config.py; here is what null
// means, and what only some families have.
TEST(ConfigTest, AbsentFieldsAreTheFamilysDefaults) {
  Json json = LlamaJson();
  json.erase("num_key_value_heads");
  json.erase("max_position_embeddings");
  json["num_attention_heads"] = 32;
  json["hidden_size"] = 512;
  const ModelConfig llama = LoadOrDie(json);
  EXPECT_EQ(llama.kv_heads, 32);
  EXPECT_EQ(llama.context, 2048);
  EXPECT_THAT(llama.eos_ids, ElementsAre(2));
  json["architectures"] = {"MistralForCausalLM"};
  const ModelConfig mistral = LoadOrDie(json);
  EXPECT_EQ(mistral.kv_heads, 8);
  EXPECT_EQ(mistral.context, 131072);
  EXPECT_EQ(mistral.sliding_window, 4096);
  EXPECT_THAT(mistral.eos_ids, ElementsAre(2));
  EXPECT_EQ(LoadOrDie(With(json, R"({"sliding_window": null})")).sliding_window, 4096)
      << "merge_patch removes it";
  json["sliding_window"] = nullptr;
  json["num_key_value_heads"] = nullptr;
  json["eos_token_id"] = nullptr;
  const ModelConfig nulls = LoadOrDie(json);
  EXPECT_EQ(nulls.sliding_window, 0);
  EXPECT_EQ(nulls.kv_heads, 32);
  EXPECT_TRUE(nulls.eos_ids.empty());
  json.erase("num_key_value_heads");
  for (const char* name : {"Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    json["architectures"] = {name};
    const ModelConfig qwen = LoadOrDie(json);
    EXPECT_EQ(qwen.kv_heads, 32);
    EXPECT_EQ(qwen.context, 32768);
    EXPECT_EQ(qwen.sliding_window, 0);
    EXPECT_TRUE(qwen.eos_ids.empty());
  }
  json["num_attention_heads"] = 6;
  EXPECT_THAT(std::string(Load(json).status().message()),
              HasSubstr("num_attention_heads is 6, not a multiple of num_key_value_heads, 32, "
                        "which is the default"));
}

TEST(ConfigTest, ScaledRopeExtendsTheContext) {
  struct Case {
    const char* patch;
    int32_t context;
  };
  for (const Case& c : std::vector<Case>{
           // As Qwen's model cards say to add it.
           {R"({"max_position_embeddings": 32768, "rope_scaling": {"rope_type": "yarn",
               "factor": 4.0, "original_max_position_embeddings": 32768}})",
            131072},
           {R"({"max_position_embeddings": 40960, "rope_scaling": {"type": "yarn",
               "factor": 4.0, "original_max_position_embeddings": 32768}})",
            131072},
           {R"({"max_position_embeddings": 40960, "rope_parameters": {"rope_type": "yarn",
               "factor": 2.5, "original_max_position_embeddings": 32768}})",
            81920},
           // Already extended, or more.
           {R"({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "yarn",
               "factor": 4.0, "original_max_position_embeddings": 32768}})",
            131072},
           {R"({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "yarn",
               "factor": 2.0, "original_max_position_embeddings": 32768}})",
            131072},
           // The original context left out, and the factor.
           {R"({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}})", 8192},
           {R"({"rope_scaling": {"rope_type": "yarn",
               "original_max_position_embeddings": 1024}})",
            4096},
           {R"({"rope_scaling": {"rope_type": "yarn", "factor": 0.5}})", 4096},
           {R"({"rope_scaling": {"type": "linear", "factor": 4.0}})", 16384},
           {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 2048}})",
            4096},
           {R"({"rope_scaling": {"rope_type": "default", "factor": 8.0}})", 4096}}) {
    EXPECT_EQ(LoadOrDie(With(LlamaJson(), c.patch)).context, c.context) << c.patch;
  }
}

TEST(ConfigTest, TheOriginalContextBesideTheObjectWins) {
  const RopeConfig rope =
      LoadOrDie(With(LlamaJson(), R"({"original_max_position_embeddings": 1024, "rope_scaling":
          {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}})"))
          .rope;
  EXPECT_EQ(rope.original_context, 1024);
}

struct QuantizedCase {
  const char* patch;
  const char* says;
};

TEST(ConfigTest, QuantizedCheckpointsAreRefusedByMethod) {
  for (
      const QuantizedCase& c : std::vector<QuantizedCase>{
          {R"({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3"}})",
           R"("fp8" (fmt "e4m3"))"},
          {R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}})",
           R"("gptq" (bits 4, group_size 128))"},
          {R"({"quantization_config": {"quant_method": "awq", "bits": 4, "version": "gemm"}})",
           R"("awq" (bits 4, version "gemm"))"},
          {R"({"quantization_config": {"quant_method": "compressed-tensors",
                "format": "int-quantized", "config_groups": {"group_0": {}}}})",
           R"("compressed-tensors" (format "int-quantized"))"},
          {R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}})",
           R"("modelopt" (quant_algo "NVFP4"))"},
          {R"({"quantization_config": {"load_in_8bit": true}})", "bitsandbytes"},
          {R"({"quantization_config": {"quant_method": "mxfp4"}})", R"("mxfp4")"},
          {R"({"quantization_config": {}})", "a method that it does not name"},
          {R"({"quantization_config": "int8"})", R"("int8")"},
          {R"({"quantization_config": {"quant_method": "a\nb"}})", R"("a\nb")"},
          {R"({"compression_config": {"format": "pack-quantized"}})",
           R"(compressed-tensors (format "pack-quantized"))"},
          {R"({"quantization": {"bits": 4, "group_size": 64}})", "MLX (bits 4, group_size 64)"},
          {R"({"text_config": {"quantization_config": {"quant_method": "awq"}}})",
           R"(text_config: quantization_config says that the weights are quantized with "awq")"}}) {
    const absl::Status status = Load(With(LlamaJson(), c.patch)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << c.patch;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.says)) << c.patch;
    EXPECT_THAT(std::string(status.message()), HasSubstr("config.json: "));
    EXPECT_THAT(std::string(status.message()), HasSubstr("allowed: checkpoints of F32"));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
  }
  Json json = LlamaJson();
  json["quantization_config"] = nullptr;
  EXPECT_TRUE(Load(json).ok());
}

TEST(ConfigTest, FilesOfQuantizationToolsAreRefused) {
  const std::vector<std::pair<std::string, std::string>> files = {
      {"hf_quant_config.json",
       R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}})"},
      {"quantize_config.json", R"({"bits": 4, "group_size": 128})"},
      {"quant_config.json", R"({"w_bit": 4, "q_group_size": 128})"}};
  const std::vector<std::string> says = {R"("FP8" (quant_algo "FP8"))",
                                         "GPTQ (bits 4, group_size 128)",
                                         "AWQ (w_bit 4, q_group_size 128)"};
  for (size_t i = 0; i < files.size(); ++i) {
    const TempDir dir;
    WriteFile(dir.File("config.json"), LlamaJson().dump());
    WriteFile(dir.File(files[i].first), files[i].second);
    const absl::Status status = LoadModelConfig(dir.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr(files[i].first));
    EXPECT_THAT(std::string(status.message()), HasSubstr(says[i]));
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
      {R"({"rope_scaling": {"rope_type": "yarn", "factor": 1e9}})",
       absl::StatusCode::kInvalidArgument,
       {"1e+09", "4096", "16777216"}},
      {R"({"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6},
                               "sliding_attention": {"rope_type": "default"}}})",
       absl::StatusCode::kUnimplemented,
       {"rope_parameters", "the same for all layers"}},
      {R"({"architectures": ["MistralForCausalLM"], "sliding_window": 0})",
       absl::StatusCode::kInvalidArgument,
       {"sliding_window is 0", "integer from 1"}},
      {R"({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": true,
           "max_window_layers": -1})",
       absl::StatusCode::kInvalidArgument,
       {"max_window_layers is -1", "integer from 0"}},
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
