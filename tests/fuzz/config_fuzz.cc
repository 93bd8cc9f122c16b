// A checkpoint's config.json, and after a zero byte its generation_config.json. What is accepted
// must describe a transformer that can be built.

#include <cmath>

#include "base/check.h"
#include "model/checkpoint/config.h"
#include "tests/fuzz/target.h"
#include "tests/fuzz/temporary_folder.h"

namespace specfabric {
namespace {

void CheckAccepted(const model::ModelConfig& config) {
  SPECFABRIC_CHECK(!config.architecture.empty());
  for (const int32_t count : {config.vocabulary, config.hidden, config.intermediate, config.layers,
                              config.heads, config.kv_heads, config.head_dim, config.context}) {
    SPECFABRIC_CHECK(count >= 1);
  }
  SPECFABRIC_CHECK(config.heads % config.kv_heads == 0 && config.head_dim % 2 == 0);
  SPECFABRIC_CHECK(std::isfinite(config.rms_epsilon) && config.rms_epsilon > 0);
  SPECFABRIC_CHECK(config.sliding_window >= 0);
  for (const int32_t most : {0, 1, 300}) {
    const auto context = model::ServedContext(config, most);
    if (!context.ok()) continue;
    SPECFABRIC_CHECK(*context >= 1 && *context <= config.context);
    SPECFABRIC_CHECK(config.sliding_window == 0 || config.sliding_window >= *context);
  }
  for (const base::TokenId id : config.eos_ids) SPECFABRIC_CHECK(id >= 0);
  const model::RopeConfig& rope = config.rope;
  for (const double value : {rope.theta, rope.factor, rope.low_freq_factor, rope.high_freq_factor,
                             rope.beta_fast, rope.beta_slow}) {
    SPECFABRIC_CHECK(std::isfinite(value) && value > 0);
  }
  if (!config.states) return;
  const model::StateDrafter& states = *config.states;
  SPECFABRIC_CHECK(states.target_hidden >= 1);
  SPECFABRIC_CHECK(states.draft_vocabulary >= 1 && states.draft_vocabulary <= config.vocabulary);
  for (const int32_t layer : states.layers) SPECFABRIC_CHECK(layer >= 0);
  const auto layers = static_cast<size_t>(config.layers);
  SPECFABRIC_CHECK(states.windows.empty() || states.windows.size() == layers);
  for (const int32_t window : states.windows) SPECFABRIC_CHECK(window >= 0);
  if (states.block) {
    SPECFABRIC_CHECK(states.block->rows >= 2 && states.block->causal.size() == layers);
    SPECFABRIC_CHECK(config.mask_token >= 0 && config.mask_token < config.vocabulary);
    const bool markov = states.block->markov != model::MarkovKind::kNone;
    SPECFABRIC_CHECK(markov == (states.block->markov_rank > 0));
    SPECFABRIC_CHECK(markov || !states.block->confidence_reads_markov);
  }
  model::ModelConfig target, drafter = config;
  target.vocabulary = config.vocabulary;
  target.hidden = states.target_hidden;
  target.layers = 8;
  if (!model::ResolveDrafter(target, &drafter).ok()) return;
  SPECFABRIC_CHECK(!drafter.states->layers.empty());
  for (const int32_t layer : drafter.states->layers) SPECFABRIC_CHECK(layer <= target.layers);
}

}  // namespace

std::vector<fuzz::Bytes> fuzz::Seeds() {
  const std::string shape =
      R"("vocab_size":128,"hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,)"
      R"("num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":256,)"
      R"("rms_norm_eps":1e-05,"hidden_act":"silu","torch_dtype":"bfloat16",)";
  const auto config = [&shape](const std::string& architecture, const std::string& rest) {
    return ToBytes(R"({"architectures":[")" + architecture + R"("],)" + shape + rest + "}");
  };
  const std::string llama3 =
      R"("tie_word_embeddings":true,"eos_token_id":[1,2],"rope_scaling":{"rope_type":"llama3",)"
      R"("factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,)"
      R"("original_max_position_embeddings":64})";
  const std::string yarn =
      R"("head_dim":16,"rope_parameters":{"rope_type":"yarn","rope_theta":10000.0,"factor":4.0,)"
      R"("original_max_position_embeddings":64,"mscale":0.7,"mscale_all_dim":1.0,)"
      R"("beta_fast":32,"beta_slow":1,"truncate":false})";
  const std::string drafter =
      R"("draft_vocab_size":32,"target_hidden_size":96,"norm_before_fc":true,"bias":true,)"
      R"("eagle_config":{"eagle_aux_hidden_state_layer_ids":[1,4,7],"norm_output":true})";
  const std::string nested =
      R"({"architectures":["Eagle3DraftModel"],"draft_vocab_size":32,"norm_before_residual":true,)"
      R"("eagle_aux_hidden_state_layer_ids":[2,4,8],"fc_norm":true,"transformer_layer_config":{)" +
      shape + R"("model_type":"qwen3"}})";
  const std::string block =
      R"("block_size":7,"is_causal":false,"sliding_window":64,"layer_types":["full_attention",)"
      R"("sliding_attention"],"dflash_config":{"mask_token_id":127,"target_layer_ids":[-1,2,5],)"
      R"("markov_rank":8,"markov_head_type":"rnn","enable_confidence_head":true,)"
      R"("confidence_head_with_markov":true})";
  const std::string nested_block =
      R"({"architectures":["DFlashDraftModel"],"speculators_model_type":"dflash","block_size":4,)"
      R"("mask_token_id":3,"sample_from_anchor":false,"transformer_layer_config":{)" +
      shape + R"("model_type":"qwen3"}})";
  const std::string mtp =
      R"({"architectures":["MTPDraftModel"],"speculators_model_type":"mtp",)"
      R"("transformer_layer_config":{)" +
      shape +
      R"("model_type":"qwen3","layer_types":["sliding_attention","full_attention"],)"
      R"("sliding_window":64}})";
  Bytes with_generation = config("Qwen2ForCausalLM", R"("use_sliding_window":true,)"
                                                     R"("sliding_window":512,"eos_token_id":0)");
  const Bytes generation = ToBytes(R"({"eos_token_id":[7,8]})");
  with_generation.push_back(0);
  with_generation.insert(with_generation.end(), generation.begin(), generation.end());
  return {config("LlamaForCausalLM", llama3),
          config("Qwen3ForCausalLM", yarn),
          config("MistralForCausalLM", R"("sliding_window":null,"rope_theta":1e6,)"
                                       R"("rope_scaling":{"type":"linear","factor":2})"),
          config("MistralForCausalLM", R"("sliding_window":64,"quantization_config":)"
                                       R"({"quant_method":"gptq","bits":4,"load_in_4bit":true})"),
          ToBytes(R"({"architectures":["Qwen3ForCausalLM"],"vocab_size":8,"hidden_size":64,)"
                  R"("intermediate_size":8,"num_hidden_layers":1,"num_attention_heads":32,)"
                  R"("use_sliding_window":true,"max_window_layers":0,"text_config":{}})"),
          config("LlamaForCausalLMEagle3", drafter),
          config("Qwen3Eagle3Model", R"("target_layer_ids":[1,3,5,7])"),
          ToBytes(nested),
          config("DSparkDraftModel", block),
          ToBytes(nested_block),
          ToBytes(mtp),
          config("MiMoForCausalLM", R"("num_nextn_predict_layers":1,"pard_token":3)"),
          with_generation};
}

}  // namespace specfabric

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specfabric;  // NOLINT: the entry point cannot be inside
  static const fuzz::TemporaryFolder folder;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  folder.Write("config.json", input.substr(0, zero));
  if (zero == std::string_view::npos) {
    folder.Remove("generation_config.json");
  } else {
    folder.Write("generation_config.json", input.substr(zero + 1));
  }
  const auto config = model::LoadModelConfig(folder.path());
  if (config.ok()) CheckAccepted(*config);
  const auto draft = model::LoadDraftConfig(folder.path(), folder.path());
  SPECFABRIC_CHECK(config.ok() || !draft.ok());
  if (draft.ok()) CheckAccepted(*draft);
  return 0;
}
