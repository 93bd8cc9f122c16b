// What LoadModelConfig and ResolveDrafter make of the config.json of drafters that predict a block
// of tokens in one pass.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/checkpoint/config.h"
#include "nlohmann/json.hpp"
#include "tests/model/config_json.h"

namespace specfabric::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// z-lab's layout, and SpecForge's.
Json FlatJson() {
  return Json::parse(R"({
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "vocab_size": 1000,
    "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 20, "block_size": 16, "num_target_layers": 36,
    "sliding_window": null, "use_sliding_window": false, "tie_word_embeddings": true,
    "layer_types": ["full_attention", "full_attention", "full_attention"],
    "dflash_config": {"mask_token_id": 990, "target_layer_ids": [1, 9, 17, 25, 33]}})");
}

Json SpeculatorsJson() {
  return Json::parse(R"({
    "architectures": ["DSparkDraftModel"], "speculators_model_type": "dspark",
    "draft_vocab_size": 300, "block_size": 8, "mask_token_id": 3,
    "aux_hidden_state_layer_ids": [2, 18, 33],
    "transformer_layer_config": {
      "model_type": "qwen3", "vocab_size": 1000, "hidden_size": 96, "intermediate_size": 200,
      "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}})");
}

Json DeepSpecJson() {
  return Json::parse(R"({
    "architectures": ["Qwen3DSparkModel"], "model_type": "qwen3", "vocab_size": 1000,
    "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 1, "num_attention_heads": 6,
    "num_key_value_heads": 2, "block_size": 7, "mask_token_id": 5,
    "target_layer_ids": [1, 9, 17], "markov_rank": 64, "markov_head_type": "gated",
    "enable_confidence_head": true, "confidence_head_with_markov": true})");
}

StateDrafter StatesOf(const Json& json) {
  StateDrafter states = LoadOrDie(json).states.value_or(StateDrafter());
  EXPECT_TRUE(states.block.has_value()) << json;
  if (!states.block) states.block.emplace();
  return states;
}
BlockDrafter BlockOf(const Json& json, const char* patch) {
  return *StatesOf(With(json, patch)).block;
}

TEST(BlockDrafterConfigTest, ReadsDFlash) {
  const ModelConfig config = LoadOrDie(FlatJson());
  EXPECT_EQ(config.mask_token, 990);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_FALSE(config.tied_embeddings) << "a head that is absent is the target's";
  const StateDrafter states = StatesOf(FlatJson());
  EXPECT_STREQ(Name(states.kind), "dflash");
  EXPECT_THAT(states.layers, ElementsAre(2, 10, 18, 26, 34));
  EXPECT_THAT(states.windows, IsEmpty());
  EXPECT_EQ(states.block->rows, 16);
  EXPECT_EQ(states.block->levels(), 15);
  EXPECT_THAT(states.block->causal, ElementsAre(false, false, false));
  EXPECT_FALSE(states.block->sequential());
  // Newer exports have it beside the mask.
  EXPECT_EQ(BlockOf(FlatJson(), R"({"block_size": null, "dflash_config": {"block_size": 8}})").rows,
            8);
}

TEST(BlockDrafterConfigTest, ReadsDSpark) {
  const StateDrafter states = StatesOf(DeepSpecJson());
  EXPECT_STREQ(Name(states.kind), "dspark");
  EXPECT_THAT(states.layers, ElementsAre(2, 10, 18));
  EXPECT_EQ(states.block->levels(), 7) << "the anchor's row predicts too";
  EXPECT_EQ(states.block->markov, MarkovKind::kGated);
  EXPECT_EQ(states.block->markov_rank, 64);
  EXPECT_TRUE(states.block->confidence && states.block->confidence_reads_markov);
  EXPECT_EQ(BlockOf(DeepSpecJson(), R"({"markov_head_type": "rnn"})").markov,
            MarkovKind::kRecurrent);
  const BlockDrafter bare =
      BlockOf(DeepSpecJson(), R"({"markov_rank": 0, "enable_confidence_head": null,
                          "confidence_head_with_markov": null})");
  EXPECT_FALSE(bare.sequential());

  const BlockDrafter specforge = BlockOf(FlatJson(), R"({
      "architectures": ["DSparkDraftModel"], "block_size": 7,
      "dflash_config": {"projector_type": "dspark", "markov_rank": 32,
                        "confidence_head_alpha": 1.0}})");
  EXPECT_TRUE(specforge.from_anchor);
  EXPECT_EQ(specforge.markov, MarkovKind::kVanilla);
  EXPECT_TRUE(specforge.confidence);
  EXPECT_FALSE(specforge.confidence_reads_markov);
}

// The same class names are in two layouts, which differ in what is meant where nothing is said.
TEST(BlockDrafterConfigTest, ReadsSpeculators) {
  const StateDrafter states = StatesOf(SpeculatorsJson());
  EXPECT_STREQ(Name(states.kind), "dspark");
  EXPECT_THAT(states.layers, ElementsAre(2, 18, 33));
  EXPECT_EQ(states.draft_vocabulary, 300);
  EXPECT_TRUE(states.block->from_anchor);
  EXPECT_EQ(states.block->markov, MarkovKind::kVanilla);
  EXPECT_EQ(states.block->markov_rank, 256);
  EXPECT_TRUE(states.block->confidence && states.block->confidence_reads_markov);
  EXPECT_FALSE(BlockOf(SpeculatorsJson(), R"({"sample_from_anchor": false})").from_anchor);
  const StateDrafter dflash = StatesOf(With(SpeculatorsJson(), R"({
      "architectures": ["DFlashDraftModel"], "speculators_model_type": "dflash"})"));
  EXPECT_STREQ(Name(dflash.kind), "dflash");
  EXPECT_FALSE(dflash.block->from_anchor || dflash.block->sequential());
}

TEST(BlockDrafterConfigTest, LayersHaveWindows) {
  constexpr char kSliding[] = R"({
      "sliding_window": 2048,
      "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]})";
  const ModelConfig config = LoadOrDie(With(FlatJson(), kSliding));
  EXPECT_THAT(config.states->windows, ElementsAre(2048, 0, 2048));
  EXPECT_THAT(config.states->block->causal, ElementsAre(true, false, true));
  const absl::StatusOr<int32_t> context = ServedContext(config, 0);
  ASSERT_TRUE(context.ok()) << context.status();
  EXPECT_EQ(*context, 32768);
  const Json sliding = With(FlatJson(), kSliding);
  EXPECT_THAT(BlockOf(sliding, R"({"sliding_window_non_causal": true})").causal,
              ElementsAre(false, false, false));
  EXPECT_THAT(BlockOf(sliding, R"({"dflash_config": {"causal": true}})").causal,
              ElementsAre(true, true, true));
  EXPECT_THAT(BlockOf(sliding, R"({"is_causal": false})").causal, ElementsAre(false, false, false));
  EXPECT_THAT(BlockOf(sliding, R"({"is_causal": true, "dflash_config": {"causal": false}})").causal,
              ElementsAre(true, true, true));
  EXPECT_THAT(StatesOf(With(sliding, R"({"dflash_config": {"swa_window_size": 512}})")).windows,
              ElementsAre(512, 0, 512));
}

TEST(BlockDrafterConfigTest, FillsInTheUsualLayers) {
  ModelConfig drafter = LoadOrDie(With(FlatJson(), R"({
      "num_hidden_layers": 5, "layer_types": null, "dflash_config": {"target_layer_ids": null}})"));
  ModelConfig target;
  target.vocabulary = 1000;
  target.hidden = 96;
  target.layers = 36;
  ASSERT_TRUE(ResolveDrafter(target, &drafter).ok());
  EXPECT_THAT(drafter.states->layers, ElementsAre(2, 10, 18, 26, 34)) << "as published for 36";
  drafter.states->layers.clear();
  drafter.layers = 1;
  ASSERT_TRUE(ResolveDrafter(target, &drafter).ok());
  EXPECT_THAT(drafter.states->layers, ElementsAre(19));
}

TEST(BlockDrafterConfigTest, BadInputIsOneClearLine) {
  struct Case {
    Json json;
    std::vector<std::string> says;
  };
  const auto flat = [](const char* patch) { return With(FlatJson(), patch); };
  const auto deep = [](const char* patch) { return With(DeepSpecJson(), patch); };
  const std::vector<Case> cases = {
      {flat(R"({"num_hidden_layers": 129, "layer_types": null})"),
       {"num_hidden_layers is 129", "allowed: 1 to 128"}},
      {flat(R"({"block_size": null})"), {"block_size is 0", "allowed: 2 to"}},
      {flat(R"({"block_size": 1})"), {"block_size is 1", "allowed: 2 to"}},
      {flat(R"({"block_size": 4096})"), {"block_size is 4096", "allowed: 2 to"}},
      {flat(R"({"dflash_config": {"mask_token_id": 1000}})"), {"mask_token_id is 1000", "1000"}},
      {flat(R"({"dflash_config": {"mask_token_id": null}})"), {"mask_token_id is missing"}},
      {flat(R"({"dflash_config": 3})"), {"dflash_config is not an object"}},
      {flat(R"({"layer_types": ["full_attention"]})"), {"layer_types", "3 layers"}},
      {flat(R"({"layer_types": ["full_attention", "full_attention", "chunked_attention"]})"),
       {"chunked_attention", "full_attention, sliding_attention"}},
      {flat(R"({"layer_types": ["sliding_attention", "full_attention", "full_attention"]})"),
       {"sliding_window is missing"}},
      {flat(R"({"dflash_config": {"use_swa": true}})"), {"use_swa 'true'", "layer_types"}},
      {flat(R"({"dflash_config": {"conv_kernel_size": 2}})"), {"conv_kernel_size", "DFlash2"}},
      {flat(R"({"dflash_config": {"attention_sink_bias": true}})"), {"attention_sink_bias"}},
      {flat(R"({"dflash_config": {"target_layer_ids": ["x"]}})"), {"target_layer_ids"}},
      {deep(R"({"markov_head_type": "lstm"})"), {"lstm", "vanilla, gated, rnn"}},
      {deep(R"({"markov_rank": 0})"), {"confidence_head_with_markov", "markov_rank"}},
      {deep(R"({"markov_rank": -1})"), {"markov_rank is -1"}},
  };
  for (const Case& bad : cases) {
    const absl::Status status = Load(bad.json).status();
    EXPECT_FALSE(status.ok()) << bad.json;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
    EXPECT_THAT(std::string(status.message()), HasSubstr("config.json"));
    for (const std::string& text : bad.says) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(text)) << bad.json;
    }
  }
}

}  // namespace
}  // namespace specfabric::model
