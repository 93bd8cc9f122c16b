#include "model/checkpoint/checkpoint_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/model/checkpoint_writer.h"

namespace specfabric::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

ModelConfig TiedConfig() {
  ModelConfig config = OddConfig();
  config.tied_embeddings = true;
  return config;
}

absl::StatusOr<OpenedCheckpoint> Open(const ModelConfig& config,
                                      const std::vector<NamedTensor>& tensors) {
  const TempDir dir;
  WriteSafetensors(dir.File("model.safetensors"), tensors, DataType::kFloat32);
  return OpenCheckpoint(dir.path(), config);
}

// The checkpoint of `config` and one more tensor of four values.
absl::StatusOr<OpenedCheckpoint> OpenWith(const ModelConfig& config, const std::string& name,
                                          float value = 0.5f) {
  std::vector<NamedTensor> tensors = RandomTensors(config, 1);
  tensors.push_back({name, {4}, {0, 0, 0, value}});
  return Open(config, tensors);
}

NamedTensor& Find(std::vector<NamedTensor>& tensors, const std::string& name) {
  return *std::find_if(tensors.begin(), tensors.end(),
                       [&](const NamedTensor& tensor) { return tensor.name == name; });
}

TEST(CheckpointTensorsTest, ACheckpointOfItsConfigHasNoNotes) {
  ModelConfig biased = TiedConfig();
  biased.qkv_bias = biased.output_bias = biased.mlp_bias = biased.qk_norm = true;
  for (const ModelConfig& config : {OddConfig(), TiedConfig(), biased}) {
    const absl::StatusOr<OpenedCheckpoint> opened = Open(config, RandomTensors(config, 1));
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_THAT(opened->notes, IsEmpty());
    EXPECT_EQ(opened->tied_embeddings, config.tied_embeddings);
  }
}

TEST(CheckpointTensorsTest, AHeadOfItsOwnIsUsedWhereItDiffers) {
  std::vector<NamedTensor> tensors = RandomTensors(TiedConfig(), 1);
  NamedTensor head = Find(tensors, kEmbeddingName);
  head.name = kHeadName;
  tensors.push_back(head);
  absl::StatusOr<OpenedCheckpoint> opened = Open(TiedConfig(), tensors);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE(opened->tied_embeddings) << "equal: one matrix in memory";
  EXPECT_THAT(opened->notes, IsEmpty());

  tensors.back().values.back() += 1.0f;
  opened = Open(TiedConfig(), tensors);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_FALSE(opened->tied_embeddings);
  EXPECT_THAT(opened->notes, ElementsAre(HasSubstr("'lm_head.weight' differs from")));

  tensors.back().shape = {TiedConfig().hidden, TiedConfig().vocabulary};
  EXPECT_THAT(std::string(Open(TiedConfig(), tensors).status().message()),
              HasSubstr("'lm_head.weight' has shape [72, 101], but config.json says [101, 72]"));
}

// Equal values of another type are equal; the types of one checkpoint may differ by file.
TEST(CheckpointTensorsTest, HeadsOfAnotherTypeAreComparedByValue) {
  std::vector<NamedTensor> tensors = RandomTensors(TiedConfig(), 1);
  NamedTensor& embedding = Find(tensors, kEmbeddingName);
  for (float& value : embedding.values) value = std::round(value);  // exact as bfloat16
  NamedTensor head = embedding;
  head.name = kHeadName;
  for (const float added : {0.0f, 1.0f}) {
    head.values[5] += added;
    const TempDir dir;
    WriteSafetensors(dir.File("one.safetensors"), tensors, DataType::kFloat32);
    WriteSafetensors(dir.File("two.safetensors"), {head}, DataType::kBFloat16);
    WriteFile(dir.File("model.safetensors.index.json"),
              absl::StrCat(R"({"weight_map": {")", kEmbeddingName, R"(": "one.safetensors", ")",
                           kHeadName, R"(": "two.safetensors"}})"));
    const absl::StatusOr<OpenedCheckpoint> opened = OpenCheckpoint(dir.path(), TiedConfig());
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ(opened->tied_embeddings, added == 0.0f);
  }
}

TEST(CheckpointTensorsTest, ATiedCheckpointMayStoreTheHeadAlone) {
  std::vector<NamedTensor> tensors = RandomTensors(TiedConfig(), 1);
  Find(tensors, kEmbeddingName).name = kHeadName;
  const absl::StatusOr<OpenedCheckpoint> opened = Open(TiedConfig(), tensors);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE(opened->tied_embeddings);
  EXPECT_STREQ(EmbeddingName(opened->checkpoint, true), kHeadName);
  EXPECT_STREQ(EmbeddingName(opened->checkpoint, false), kEmbeddingName);
}

TEST(CheckpointTensorsTest, AMissingHeadIsAnErrorUnlessTied) {
  std::vector<NamedTensor> tensors = RandomTensors(OddConfig(), 1);
  tensors.pop_back();
  const absl::Status status = Open(OddConfig(), tensors).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no tensor 'lm_head.weight'"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("tie_word_embeddings"));
  EXPECT_TRUE(Open(TiedConfig(), tensors).ok());
}

TEST(CheckpointTensorsTest, TensorsOfQuantizedWeightsAreRefused) {
  for (const char* name :
       {"model.layers.0.self_attn.q_proj.weight_scale",
        "model.layers.0.self_attn.q_proj.weight_scale_inv",
        "model.layers.0.self_attn.q_proj.input_scale", "model.layers.0.self_attn.k_scale",
        "model.layers.0.mlp.up_proj.qweight", "model.layers.0.mlp.up_proj.qzeros",
        "model.layers.0.mlp.up_proj.scales", "model.layers.0.mlp.up_proj.g_idx",
        "model.layers.0.mlp.up_proj.weight_packed", "model.layers.0.mlp.up_proj.weight_zero_point",
        "model.layers.0.mlp.up_proj.SCB", "model.layers.0.mlp.up_proj.weight.absmax",
        "model.layers.0.mlp.up_proj.weight.quant_state.bitsandbytes__nf4",
        "model.layers.0.mlp.up_proj.weight_quantizer._amax", "model.layers.0.mlp.up_proj.biases",
        "lm_head.weight_scale", "model.embed_tokens.weight_scale", "scales"}) {
    const absl::Status status = OpenWith(OddConfig(), name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << name << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("tensor '", name, "'")));
    EXPECT_THAT(std::string(status.message()), HasSubstr("quantized weights"));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
  }
}

TEST(CheckpointTensorsTest, OtherTensorsOfTheModelsOwnPartsAreRefused) {
  for (const char* name :
       {"model.layers.0.self_attn.q_proj.bias", "model.layers.2.self_attn.q_norm.weight",
        "model.layers.1.mlp.gate_proj.bias", "model.layers.0.post_feedforward_layernorm.weight",
        "model.layers.0.self_attn.sinks", "model.layers.0.mlp.experts.0.up_proj.weight",
        "model.layers.0.self_attn.q_proj.lora_A.weight", "base.lora_embedding_A", "lm_head.bias",
        "model.norm.bias", "model.embed_tokens.bias"}) {
    const absl::Status status = OpenWith(OddConfig(), name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << name << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("tensor '", name, "'")));
    EXPECT_THAT(std::string(status.message()), HasSubstr("no place in a LlamaForCausalLM"));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
  }
  std::vector<NamedTensor> tensors = RandomTensors(OddConfig(), 1);
  for (int i = 0; i < 3; ++i) {
    tensors.push_back({absl::StrCat("model.layers.", i, ".self_attn.q_norm.weight"), {1}, {1}});
  }
  EXPECT_THAT(std::string(Open(OddConfig(), tensors).status().message()),
              HasSubstr("3 tensors, the first 'model.layers.0.self_attn.q_norm.weight',"));
}

TEST(CheckpointTensorsTest, TensorsThatChangeNothingAreIgnored) {
  // Buffers that versions of transformers stored: not even said.
  for (const char* name : {"model.layers.0.self_attn.rotary_emb.inv_freq",
                           "model.rotary_emb.inv_freq", "model.layers.1.self_attn.masked_bias"}) {
    const absl::StatusOr<OpenedCheckpoint> opened = OpenWith(OddConfig(), name);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_THAT(opened->notes, IsEmpty()) << name;
  }
  // Layers beyond the last, other parts: said.
  for (const char* name : {"model.layers.3.eh_proj.weight", "model.mtp.0.weight", "visual.weight",
                           "model.layers.99999999999.weight", "model.layers.-1.weight"}) {
    const absl::StatusOr<OpenedCheckpoint> opened = OpenWith(OddConfig(), name);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_THAT(opened->notes, ElementsAre(HasSubstr(absl::StrCat("tensor '", name, "' is not"))));
  }
  // A bias of zeros.
  const char* bias = "model.layers.0.self_attn.o_proj.bias";
  EXPECT_TRUE(OpenWith(OddConfig(), bias, 0.0f).ok());
  EXPECT_FALSE(OpenWith(OddConfig(), bias, 1e-30f).ok());
}

// The work does not depend on what config.json claims.
TEST(CheckpointTensorsTest, AHugeNumberOfLayersCostsNothing) {
  ModelConfig config = OddConfig();
  const std::vector<NamedTensor> tensors = RandomTensors(config, 1);
  config.layers = 1 << 24;
  EXPECT_TRUE(Open(config, tensors).ok());
}

}  // namespace
}  // namespace specfabric::model
