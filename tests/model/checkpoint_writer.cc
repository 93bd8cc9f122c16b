#include "tests/model/checkpoint_writer.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/checkpoint/checkpoint_tensors.h"
#include "model/checkpoint/float16.h"
#include "nlohmann/json.hpp"

namespace specfabric::model {
namespace {

using Json = nlohmann::json;

// Windows are all of one size.
void AddWindows(const std::vector<int32_t>& windows, Json* json) {
  for (const int32_t window : windows) {
    (*json)["layer_types"].push_back(window == 0 ? "full_attention" : "sliding_attention");
    if (window > 0) (*json)["sliding_window"] = window;
  }
}

// Where layers differ, those that are causal are those with a window.
void AddBlock(const ModelConfig& c, Json* json) {
  const BlockDrafter& block = *c.states->block;
  constexpr const char* kTypes[] = {"vanilla", "vanilla", "gated", "rnn"};
  json->update({{"aux_hidden_state_layer_ids", c.states->layers},
                {"mask_token_id", c.mask_token},
                {"block_size", block.rows},
                {"sample_from_anchor", block.from_anchor},
                {"markov_rank", block.markov_rank},
                {"markov_head_type", kTypes[static_cast<int>(block.markov)]},
                {"enable_confidence_head", block.confidence},
                {"confidence_head_with_markov", block.confidence_reads_markov}});
  const bool first = block.causal.front();
  const bool same = std::count(block.causal.begin(), block.causal.end(), first) == c.layers;
  if (same) (*json)["is_causal"] = first;
}

// add and matrix: RandomTensors's.
template <typename Add, typename AddMatrix>
void AddSequentialHead(const ModelConfig& c, const Add& add, const AddMatrix& matrix) {
  const BlockDrafter& block = *c.states->block;
  const int32_t rank = block.markov_rank;
  const auto biased = [&](const std::string& name, int32_t outputs, int32_t inputs) {
    matrix(name + "weight", outputs, inputs);
    add(name + "bias", {outputs}, 0.0f, 0.3f);
  };
  if (block.markov != MarkovKind::kNone) {
    add(kMarkovTokensName, {c.vocabulary, rank}, 0.0f, 1.0f);
    matrix(kMarkovScoresName, c.states->draft_vocabulary, rank);
  }
  if (block.markov == MarkovKind::kGated) {
    biased(kMarkovGateName, rank, c.hidden + rank);
  } else if (block.markov == MarkovKind::kRecurrent) {
    biased(kMarkovJointName, 3 * rank, c.hidden + 2 * rank);
  }
  if (block.confidence) {
    biased(kConfidenceName, 1, c.hidden + (block.confidence_reads_markov ? rank : 0));
  }
}

Json ConfigJson(const ModelConfig& c) {
  Json json = {{"architectures", {c.architecture}},
               {"vocab_size", c.vocabulary},
               {"hidden_size", c.hidden},
               {"intermediate_size", c.intermediate},
               {"num_hidden_layers", c.layers},
               {"num_attention_heads", c.heads},
               {"num_key_value_heads", c.kv_heads},
               {"head_dim", c.head_dim},
               {"max_position_embeddings", c.context},
               {"rms_norm_eps", c.rms_epsilon},
               {"tie_word_embeddings", c.tied_embeddings},
               {"attention_bias", c.output_bias},
               {"mlp_bias", c.mlp_bias},
               {"hidden_act", "silu"},
               {"rope_theta", c.rope.theta},
               {"sliding_window", nullptr},
               {"eos_token_id", nullptr},
               {"dtype", Name(c.checkpoint_type)}};
  if (c.mask_token != base::kNoToken && !c.states) json["pard_token"] = c.mask_token;
  if (c.states && c.states->mtp) {
    json.update({{"model_type", c.qk_norm ? "qwen3" : "llama"},
                 {"num_hidden_layers", c.states->layers.front()}});
    json = {{"architectures", {c.architecture}},
            {"speculators_model_type", "mtp"},
            {"num_nextn_predict_layers", 1},
            {"dtype", Name(c.checkpoint_type)},
            {"transformer_layer_config", json}};
  } else if (c.states) {
    const StateDrafter& states = *c.states;
    json.update({{"eagle_aux_hidden_state_layer_ids", states.layers},
                 {"target_hidden_size", states.target_hidden},
                 {"draft_vocab_size", states.draft_vocabulary},
                 {"norm_before_fc", states.norm_before_fc},
                 {"fc_norm", states.fc_norm},
                 {"bias", states.fc_bias},
                 {"norm_before_residual", states.norm_before_residual},
                 {"norm_output", states.norm_output}});
    AddWindows(states.windows, &json);
    if (states.block) AddBlock(c, &json);
  }
  return json;
}

}  // namespace

void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary).write(content.data(), content.size());
}

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void WriteSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                      DataType dtype) {
  Json header = Json::object();
  std::string data;
  for (const NamedTensor& tensor : tensors) {
    const size_t begin = data.size();
    for (float value : tensor.values) {
      if (dtype == DataType::kFloat32) {
        data.append(reinterpret_cast<const char*>(&value), sizeof(value));
      } else {
        const uint16_t bits = RoundToBFloat16(value);
        data.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
      }
    }
    data.append(reinterpret_cast<const char*>(tensor.integers.data()),
                tensor.integers.size() * sizeof(int64_t));
    header[tensor.name] = {{"dtype", dtype == DataType::kFloat32 ? "F32" : "BF16"},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, data.size()}}};
    if (!tensor.integers.empty()) header[tensor.name]["dtype"] = "I64";
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  WriteFile(path, absl::StrCat(std::string(reinterpret_cast<const char*>(&length), 8), text, data));
}

std::vector<NamedTensor> RandomTensors(const ModelConfig& c, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<NamedTensor> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, float mean,
                       float deviation) {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    NamedTensor tensor{name, std::move(shape), std::vector<float>(count)};
    for (float& value : tensor.values) value = mean + deviation * normal(random);
    tensors.push_back(std::move(tensor));
  };
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t columns) {
    add(name, {rows, columns}, 0.0f, 1.5f / std::sqrt(static_cast<float>(columns)));
  };
  const int32_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const TensorNames& names = NamesOf(c);
  add(names.embedding, {c.vocabulary, c.hidden}, 0.0f, 1.0f);
  for (int32_t i = 0; i < c.layers; ++i) {
    const std::string layer = absl::StrCat(names.layers, i, ".");
    const int32_t inputs = JoinsStates(c) && i == 0 ? 2 * c.hidden : c.hidden;
    add(layer + "input_layernorm.weight", {c.hidden}, 1.0f, 0.2f);
    add(layer + "post_attention_layernorm.weight", {c.hidden}, 1.0f, 0.2f);
    matrix(layer + "self_attn.q_proj.weight", q, inputs);
    matrix(layer + "self_attn.k_proj.weight", kv, inputs);
    matrix(layer + "self_attn.v_proj.weight", kv, inputs);
    matrix(layer + "self_attn.o_proj.weight", c.hidden, q);
    matrix(layer + "mlp.gate_proj.weight", c.intermediate, c.hidden);
    matrix(layer + "mlp.up_proj.weight", c.intermediate, c.hidden);
    matrix(layer + "mlp.down_proj.weight", c.hidden, c.intermediate);
    if (c.qkv_bias) {
      add(layer + "self_attn.q_proj.bias", {q}, 0.0f, 0.3f);
      add(layer + "self_attn.k_proj.bias", {kv}, 0.0f, 0.3f);
      add(layer + "self_attn.v_proj.bias", {kv}, 0.0f, 0.3f);
    }
    if (c.output_bias) add(layer + "self_attn.o_proj.bias", {c.hidden}, 0.0f, 0.3f);
    if (c.mlp_bias) {
      add(layer + "mlp.gate_proj.bias", {c.intermediate}, 0.0f, 0.3f);
      add(layer + "mlp.up_proj.bias", {c.intermediate}, 0.0f, 0.3f);
      add(layer + "mlp.down_proj.bias", {c.hidden}, 0.0f, 0.3f);
    }
    if (c.qk_norm) {
      add(layer + "self_attn.q_norm.weight", {c.head_dim}, 1.0f, 0.2f);
      add(layer + "self_attn.k_norm.weight", {c.head_dim}, 1.0f, 0.2f);
    }
  }
  add(names.norm, {c.hidden}, 1.0f, 0.2f);
  const int32_t tokens = c.states ? c.states->draft_vocabulary : c.vocabulary;
  if (!c.tied_embeddings) matrix(names.head, tokens, c.hidden);
  if (!c.states) return tensors;
  const StateDrafter& states = *c.states;
  if (states.mtp) {
    const std::string layer = absl::StrCat(names.layers, "0.");
    add(layer + kMtpTokenNormName, {c.hidden}, 1.0f, 0.2f);
    add(layer + kMtpStateNormName, {c.hidden}, 1.0f, 0.2f);
    matrix(layer + kMtpInputName, c.hidden, 2 * c.hidden);
    return tensors;
  }
  const auto layers = static_cast<int32_t>(states.layers.size());
  matrix(kFuseName, c.hidden, layers * states.target_hidden);
  if (states.fc_bias) add(kFuseBiasName, {c.hidden}, 0.0f, 0.3f);
  if (states.norm_before_fc) add(kFuseNormName, {layers * states.target_hidden}, 1.0f, 0.2f);
  for (int32_t i = 0; states.fc_norm && i < layers; ++i) {
    add(FuseNormName(i), {states.target_hidden}, 1.0f, 0.2f);
  }
  const std::string in = JoinsStates(c) ? absl::StrCat(names.layers, "0.") : "";
  add(in + kStateNormName, {c.hidden}, 1.0f, 0.2f);
  if (states.block) AddSequentialHead(c, add, matrix);
  if (tokens == c.vocabulary) return tensors;
  NamedTensor offsets = {kDraftIdsName, {tokens}, {}};
  for (int64_t i = 0; i < tokens; ++i) {
    offsets.integers.push_back(i * c.vocabulary / tokens - i);
  }
  tensors.push_back(std::move(offsets));
  return tensors;
}

void WriteCheckpoint(const std::string& dir, const ModelConfig& config, uint32_t seed) {
  WriteFile(dir + "/config.json", ConfigJson(config).dump());
  WriteSafetensors(dir + "/model.safetensors", RandomTensors(config, seed), config.checkpoint_type);
}

ModelConfig OddConfig() {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocabulary = 101;
  config.hidden = 72;
  config.intermediate = 148;
  config.layers = 3;
  config.heads = 12;
  config.kv_heads = 4;
  config.head_dim = 10;
  config.context = 512;
  config.rms_epsilon = 1e-5f;
  return config;
}

ModelConfig OddDrafterConfig() {
  ModelConfig config = OddConfig();
  config.architecture = "LlamaForCausalLMEagle3";
  config.layers = 1;
  StateDrafter states;
  states.layers = {0, 3, 1};
  states.target_hidden = config.hidden;
  states.draft_vocabulary = 37;
  config.states = states;
  return config;
}

ModelConfig OddBlockConfig(MarkovKind markov) {
  ModelConfig config = OddDrafterConfig();
  const bool dspark = markov != MarkovKind::kNone;
  config.architecture = dspark ? "DSparkDraftModel" : "DFlashDraftModel";
  config.layers = 3;
  config.qk_norm = true;
  config.mask_token = 99;
  StateDrafter& states = *config.states;
  states.kind = dspark ? DrafterKind::kDSpark : DrafterKind::kDFlash;
  states.windows = {0, 5, 0};
  states.block = BlockDrafter{.rows = 5,
                              .from_anchor = dspark,
                              .causal = {false, true, false},
                              .markov = markov,
                              .markov_rank = dspark ? 9 : 0};
  return config;
}

}  // namespace specfabric::model
