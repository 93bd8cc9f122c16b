#include "gateway/foreign_options.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace specfabric::gateway {
namespace {

bool Never(const Json&) { return false; }
bool IsTrue(const Json& value) { return value == true; }
bool IsFalse(const Json& value) { return value == false; }
bool IsZero(const Json& value) { return value.is_number() && value == 0; }
bool IsOne(const Json& value) { return value.is_number() && value == 1; }
bool IsMinusOne(const Json& value) { return value.is_number() && value == -1; }
bool IsEmptyList(const Json& value) { return value.is_array() && value.empty(); }
bool IsEmptyObject(const Json& value) { return value.is_object() && value.empty(); }
bool IsEmptyCollection(const Json& value) { return value.is_structured() && value.empty(); }
bool IsNoneOrAuto(const Json& value) { return value == "none" || value == "auto"; }
bool IsMedium(const Json& value) { return value == "medium"; }
bool IsLeft(const Json& value) { return value == "left"; }
bool IsTextOnly(const Json& value) {
  return value.is_array() && value.size() == 1 && value[0] == "text";
}

constexpr unsigned kGenerate = kCompletions | kChat;
constexpr unsigned kAll = kGenerate | kTokenize | kDetokenize;
constexpr Support kHonoured = Support::kHonoured;
constexpr Support kIgnored = Support::kIgnored;
constexpr Support kRefused = Support::kRefused;
using Row = RequestOption;

// Fields that change the text, or whose result a client would miss in the answer, are refused.
// Fields that only affect routing, accounting or logging are ignored, and so are those that only
// have an effect together with a refused one.
constexpr std::array kOptions = {
    Row{"adapter_id", kGenerate, kRefused, Never, ""},
    Row{"adapter_name", kGenerate, kRefused, Never, ""},
    Row{"add_generation_prompt", kChat | kTokenize, kHonoured},
    Row{"add_generation_prompt", kCompletions, kRefused, IsTrue, "true"},
    Row{"add_special", kTokenize, kRefused, Never, "", "add_special_tokens"},
    Row{"add_special_tokens", kGenerate | kTokenize, kHonoured},
    Row{"additional_drop_params", kGenerate, kIgnored},
    Row{"agent_hierarchy", kGenerate, kIgnored},
    Row{"allowed_token_ids", kGenerate, kRefused, Never, ""},
    Row{"audio", kGenerate, kRefused, Never, ""},
    Row{"bad_words", kGenerate, kHonoured},
    Row{"best_of", kGenerate, kHonoured},
    Row{"bootstrap_host", kGenerate, kRefused, Never, ""},
    Row{"bootstrap_port", kGenerate, kRefused, Never, ""},
    Row{"bootstrap_room", kGenerate, kRefused, Never, ""},
    Row{"cache_prompt", kGenerate, kIgnored},
    Row{"cache_salt", kGenerate, kHonoured},
    Row{"caching", kGenerate, kIgnored},
    Row{"chat_template", kGenerate, kRefused, Never, ""},
    Row{"chat_template", kTokenize, kRefused, Never, ""},
    Row{"chat_template_kwargs", kChat | kTokenize, kHonoured},
    Row{"chat_template_kwargs", kCompletions, kRefused, IsEmptyCollection, "empty"},
    Row{"content", kTokenize, kRefused, Never, "", "prompt"},
    Row{"continue_final_message", kChat | kTokenize, kHonoured},
    Row{"continue_final_message", kCompletions, kRefused, IsFalse, "false"},
    Row{"conversation_params", kGenerate, kIgnored},
    Row{"custom_labels", kGenerate, kIgnored},
    Row{"custom_logit_processor", kGenerate, kRefused, IsEmptyString, "an empty string"},
    Row{"custom_params", kGenerate, kRefused, IsEmptyObject, "an empty object"},
    Row{"data_parallel_rank", kGenerate, kIgnored},
    Row{"decoder_input_details", kGenerate, kRefused, IsFalse, "false"},
    Row{"details", kGenerate, kIgnored},
    Row{"detokenize", kGenerate, kRefused, IsTrue, "true"},
    Row{"disagg_prefill_dp_rank", kGenerate, kIgnored},
    Row{"disaggregated_params", kGenerate, kRefused, Never, ""},
    Row{"do_preprocess", kGenerate, kRefused, IsTrue, "true"},
    Row{"do_sample", kGenerate, kRefused, IsTrue, "true", "temperature"},
    Row{"documents", kChat | kTokenize, kHonoured},
    Row{"documents", kCompletions, kRefused, IsEmptyCollection, "empty"},
    Row{"drop_params", kGenerate, kIgnored},
    Row{"dry_allowed_length", kGenerate, kIgnored},
    Row{"dry_base", kGenerate, kIgnored},
    Row{"dry_multiplier", kGenerate, kRefused, IsZero, "0"},
    Row{"dry_penalty_last_n", kGenerate, kIgnored},
    Row{"dry_sequence_breakers", kGenerate, kIgnored},
    Row{"dynatemp_exponent", kGenerate, kIgnored},
    Row{"dynatemp_range", kGenerate, kRefused, IsZero, "0"},
    Row{"early_stopping", kGenerate, kRefused, IsFalse, "false"},
    Row{"ebnf", kGenerate, kHonoured},
    Row{"ec_transfer_params", kGenerate, kRefused, IsEmptyObject, "an empty object"},
    Row{"echo", kCompletions, kHonoured},
    Row{"echo", kChat, kRefused, IsFalse, "false"},
    Row{"enable_thinking", kChat, kRefused, Never, "", "chat_template_kwargs"},
    Row{"enable_thinking", kCompletions, kRefused, Never, ""},
    Row{"extra_body", kGenerate, kRefused, IsEmptyObject, "an empty object"},
    Row{"extra_key", kGenerate, kRefused, IsEmptyString, "an empty string", "cache_salt"},
    Row{"fallbacks", kGenerate, kRefused, Never, ""},
    Row{"frequency_penalty", kGenerate, kHonoured},
    Row{"function_call", kGenerate, kRefused, IsNoneOrAuto, "\"none\" or \"auto\""},
    Row{"functions", kGenerate, kRefused, IsEmptyList, "an empty list"},
    Row{"grammar", kGenerate, kHonoured},
    Row{"grammar_lazy", kGenerate, kRefused, IsFalse, "false"},
    Row{"grammar_triggers", kGenerate, kRefused, IsEmptyList, "an empty list"},
    Row{"guided_choice", kGenerate, kHonoured},
    Row{"guided_decoding_backend", kGenerate, kIgnored},
    Row{"guided_grammar", kGenerate, kHonoured},
    Row{"guided_json", kGenerate, kHonoured},
    Row{"guided_regex", kGenerate, kHonoured},
    Row{"guided_whitespace_pattern", kGenerate, kIgnored},
    Row{"guideline", kGenerate, kRefused, IsEmptyString, "an empty string"},
    Row{"id_slot", kGenerate, kIgnored},
    Row{"ignore_eos", kGenerate, kHonoured},
    Row{"images_config", kGenerate, kIgnored},
    Row{"include_reasoning", kChat, kHonoured},
    Row{"include_reasoning", kCompletions, kRefused, IsTrue, "true"},
    Row{"include_stop_str_in_output", kGenerate, kHonoured},
    Row{"injected_chat_template_kwargs", kGenerate, kRefused, IsEmptyList, "an empty list"},
    Row{"input_ids", kGenerate, kRefused, Never, ""},
    Row{"interactive_mode", kGenerate, kRefused, IsFalse, "false"},
    Row{"json_schema", kGenerate, kHonoured},
    Row{"kv_transfer_params", kGenerate, kRefused, IsEmptyObject, "an empty object"},
    Row{"length_penalty", kGenerate, kRefused, IsOne, "1"},
    Row{"logit_bias", kGenerate, kHonoured},
    Row{"logits_processors", kGenerate, kRefused, IsEmptyList, "an empty list"},
    Row{"logprob_token_ids", kGenerate, kRefused, Never, ""},
    Row{"logprobs", kGenerate, kHonoured},
    Row{"lora", kGenerate, kRefused, IsEmptyList, "an empty list"},
    Row{"lora_path", kGenerate, kRefused, Never, ""},
    Row{"lora_request", kGenerate, kRefused, Never, ""},
    Row{"max_completion_tokens", kGenerate, kHonoured},
    Row{"max_dynamic_patch", kGenerate, kIgnored},
    Row{"max_new_tokens", kGenerate, kRefused, Never, "", "max_tokens"},
    Row{"max_tokens", kGenerate, kHonoured},
    Row{"media_io_kwargs", kGenerate, kIgnored},
    Row{"media_io_kwargs", kTokenize, kIgnored},
    Row{"messages", kChat | kTokenize, kHonoured},
    Row{"messages", kCompletions, kRefused, IsEmptyCollection, "empty"},
    Row{"metadata", kGenerate, kIgnored},
    Row{"migration_request", kGenerate, kRefused, Never, ""},
    Row{"min_dynamic_patch", kGenerate, kIgnored},
    Row{"min_keep", kGenerate, kRefused, IsZero, "0"},
    Row{"min_new_tokens", kGenerate, kRefused, IsZero, "0", "min_tokens"},
    Row{"min_p", kGenerate, kHonoured},
    Row{"min_tokens", kGenerate, kHonoured},
    Row{"mirostat", kGenerate, kRefused, IsZero, "0"},
    Row{"mirostat_eta", kGenerate, kIgnored},
    Row{"mirostat_tau", kGenerate, kIgnored},
    Row{"mm_processor_kwargs", kGenerate, kIgnored},
    Row{"mm_processor_kwargs", kTokenize, kIgnored},
    Row{"mock_response", kGenerate, kRefused, Never, ""},
    Row{"modalities", kGenerate, kRefused, IsTextOnly, "[\"text\"]"},
    Row{"model", kAll, kHonoured},
    Row{"n", kGenerate, kHonoured},
    Row{"n_cache_reuse", kGenerate, kIgnored},
    Row{"n_cmpl", kGenerate, kRefused, IsOne, "1", "n"},
    Row{"n_indent", kGenerate, kRefused, IsZero, "0"},
    Row{"n_keep", kGenerate, kIgnored},
    Row{"n_predict", kGenerate, kRefused, IsMinusOne, "-1", "max_tokens"},
    Row{"n_probs", kGenerate, kRefused, IsZero, "0", "logprobs"},
    Row{"ngram_corpus_id", kGenerate, kIgnored},
    Row{"no_stop_trim", kGenerate, kRefused, IsFalse, "false", "include_stop_str_in_output"},
    Row{"num_retries", kGenerate, kIgnored},
    Row{"parallel_tool_calls", kChat, kHonoured},
    Row{"parallel_tool_calls", kCompletions, kIgnored},
    Row{"parse_special", kTokenize, kRefused, IsTrue, "true"},
    Row{"parse_tool_calls", kGenerate, kIgnored},
    Row{"post_sampling_probs", kGenerate, kRefused, IsFalse, "false"},
    Row{"prediction", kGenerate, kIgnored},
    Row{"presence_penalty", kGenerate, kHonoured},
    Row{"preserve_cache", kGenerate, kIgnored},
    Row{"preserved_tokens", kGenerate, kIgnored},
    Row{"priority", kGenerate, kHonoured},
    Row{"prompt", kCompletions | kTokenize, kHonoured},
    Row{"prompt_cache_key", kGenerate, kIgnored},
    Row{"prompt_cache_retention", kGenerate, kIgnored},
    Row{"prompt_embeds", kGenerate, kRefused, Never, ""},
    Row{"prompt_ignore_length", kGenerate, kRefused, IsZero, "0"},
    Row{"prompt_logprobs", kGenerate, kHonoured},
    Row{"prompt_token_ids", kGenerate, kRefused, Never, ""},
    Row{"prompt_token_ids_b64", kGenerate, kRefused, Never, ""},
    Row{"reasoning", kGenerate, kRefused, Never, ""},
    Row{"reasoning_effort", kChat | kTokenize, kHonoured},
    Row{"reasoning_effort", kCompletions, kRefused, Never, ""},
    Row{"reasoning_format", kChat, kHonoured},
    Row{"reasoning_format", kCompletions, kRefused, IsNoneOrAuto, "\"none\" or \"auto\""},
    Row{"reasoning_in_content", kGenerate, kIgnored},
    Row{"regex", kGenerate, kHonoured},
    Row{"repeat_last_n", kGenerate, kIgnored},
    Row{"repeat_penalty", kGenerate, kRefused, IsOne, "1", "repetition_penalty"},
    Row{"repetition_detection", kGenerate, kRefused, Never, ""},
    Row{"repetition_ngram_size", kGenerate, kRefused, IsZero, "0"},
    Row{"repetition_ngram_threshold", kGenerate, kRefused, IsZero, "0"},
    Row{"repetition_penalty", kGenerate, kHonoured},
    Row{"request_id", kGenerate, kIgnored},
    Row{"response_fields", kGenerate, kRefused, IsEmptyList, "an empty list"},
    Row{"response_format", kGenerate, kHonoured},
    Row{"return_cached_tokens_details", kGenerate, kRefused, IsFalse, "false"},
    Row{"return_context_logits", kGenerate, kRefused, IsFalse, "false"},
    Row{"return_full_text", kChat, kRefused, IsFalse, "false"},
    Row{"return_full_text", kCompletions, kRefused, IsFalse, "false", "echo"},
    Row{"return_hidden_states", kGenerate, kRefused, IsFalse, "false"},
    Row{"return_meta_info", kGenerate, kRefused, IsFalse, "false"},
    Row{"return_mm_kwargs", kGenerate, kIgnored},
    Row{"return_mm_kwargs", kTokenize, kIgnored},
    Row{"return_progress", kGenerate, kRefused, IsFalse, "false"},
    Row{"return_prompt_text", kGenerate, kRefused, IsFalse, "false"},
    Row{"return_prompt_token_ids", kGenerate, kRefused, IsFalse, "false", "return_token_ids"},
    Row{"return_routed_experts", kGenerate, kRefused, IsFalse, "false"},
    Row{"return_token_ids", kGenerate, kHonoured},
    Row{"return_token_offsets", kGenerate, kIgnored},
    Row{"return_token_strs", kTokenize, kRefused, IsFalse, "false"},
    Row{"return_tokens", kGenerate, kRefused, IsFalse, "false", "return_token_ids"},
    Row{"return_tokens_as_token_ids", kGenerate, kHonoured},
    Row{"rid", kGenerate, kIgnored},
    Row{"routed_dp_rank", kGenerate, kIgnored},
    Row{"routed_experts_prompt_start", kGenerate, kRefused, IsZero, "0"},
    Row{"routed_experts_start_len", kGenerate, kRefused, IsZero, "0"},
    Row{"safety_identifier", kGenerate, kIgnored},
    Row{"samplers", kGenerate, kRefused, Never, ""},
    Row{"seed", kGenerate, kHonoured},
    Row{"separate_reasoning", kChat, kHonoured},
    Row{"separate_reasoning", kCompletions, kIgnored},
    Row{"service_tier", kGenerate, kIgnored},
    Row{"session_id", kGenerate, kIgnored},
    Row{"session_params", kGenerate, kRefused, Never, ""},
    Row{"skip_special_tokens", kGenerate, kHonoured},
    Row{"skip_special_tokens", kDetokenize, kRefused, IsFalse, "false"},
    Row{"slo_tpot_ms", kGenerate, kHonoured},
    Row{"spaces_between_special_tokens", kGenerate, kRefused, IsTrue, "true"},
    Row{"speculation", kGenerate, kHonoured},
    Row{"speculative.n_max", kGenerate, kIgnored},
    Row{"speculative.n_min", kGenerate, kIgnored},
    Row{"speculative.p_min", kGenerate, kIgnored},
    Row{"sse_ping_interval", kGenerate, kIgnored},
    Row{"stop", kGenerate, kHonoured},
    Row{"stop_regex", kGenerate, kRefused, IsEmptyList, "an empty list"},
    Row{"stop_token_ids", kGenerate, kHonoured},
    Row{"store", kGenerate, kIgnored},
    Row{"stream", kGenerate, kHonoured},
    Row{"stream_interval", kGenerate, kIgnored},
    Row{"stream_options", kGenerate, kHonoured},
    Row{"stream_reasoning", kGenerate, kIgnored},
    Row{"structural_tag", kGenerate, kRefused, Never, ""},
    Row{"structured_outputs", kGenerate, kHonoured},
    Row{"suffix", kGenerate, kRefused, IsEmptyString, "an empty string"},
    Row{"t_max_predict_ms", kGenerate, kRefused, IsZero, "0", "timeout"},
    Row{"tags", kGenerate, kIgnored},
    Row{"task", kGenerate, kRefused, Never, ""},
    Row{"temperature", kGenerate, kHonoured},
    Row{"thinking", kChat, kRefused, Never, "", "chat_template_kwargs"},
    Row{"thinking", kCompletions, kRefused, Never, ""},
    Row{"thinking_budget_tokens", kGenerate, kRefused, IsMinusOne, "-1"},
    Row{"thinking_forced_open", kGenerate, kRefused, IsFalse, "false"},
    Row{"thinking_token_budget", kGenerate, kRefused, IsMinusOne, "-1"},
    Row{"timeout", kGenerate, kHonoured},
    Row{"timings_per_token", kGenerate, kRefused, IsFalse, "false"},
    Row{"tokens", kDetokenize, kHonoured},
    Row{"tool_choice", kChat, kHonoured},
    Row{"tool_choice", kCompletions, kRefused, IsNoneOrAuto, "\"none\" or \"auto\""},
    Row{"tool_prompt", kGenerate, kIgnored},
    Row{"tools", kChat, kHonoured},
    Row{"tools", kCompletions, kRefused, IsEmptyList, "an empty list"},
    Row{"tools", kTokenize, kRefused, IsEmptyList, "an empty list"},
    Row{"top_k", kGenerate, kHonoured},
    Row{"top_logprobs", kChat, kHonoured},
    Row{"top_logprobs", kCompletions, kRefused, IsZero, "0", "logprobs"},
    Row{"top_n_sigma", kGenerate, kRefused, IsMinusOne, "-1"},
    Row{"top_n_tokens", kGenerate, kRefused, IsZero, "0", "logprobs"},
    Row{"top_p", kGenerate, kHonoured},
    Row{"top_p_min", kGenerate, kRefused, IsZero, "0"},
    Row{"truncate", kGenerate, kRefused, Never, "", "truncate_prompt_tokens"},
    Row{"truncate_prompt_tokens", kGenerate, kHonoured},
    Row{"truncate_prompt_tokens", kTokenize, kRefused, Never, ""},
    Row{"truncation_side", kGenerate, kRefused, IsLeft, "\"left\""},
    Row{"typical_p", kGenerate, kRefused, IsOne, "1"},
    Row{"use_audio_in_video", kGenerate, kIgnored},
    Row{"use_beam_search", kGenerate, kRefused, IsFalse, "false"},
    Row{"user", kGenerate, kIgnored},
    Row{"user", kTokenize | kDetokenize, kIgnored},
    Row{"verbosity", kGenerate, kRefused, IsMedium, "\"medium\""},
    Row{"verification", kGenerate, kHonoured},
    Row{"vllm_xargs", kGenerate, kRefused, IsEmptyObject, "an empty object"},
    Row{"watermark", kGenerate, kRefused, IsFalse, "false"},
    Row{"watermarking", kGenerate, kRefused, IsFalse, "false"},
    Row{"web_search_options", kGenerate, kRefused, Never, ""},
    Row{"with_cache", kGenerate, kIgnored},
    Row{"with_pieces", kTokenize, kRefused, IsFalse, "false"},
    Row{"xtc_probability", kGenerate, kRefused, IsZero, "0"},
    Row{"xtc_threshold", kGenerate, kIgnored},
};
static_assert(std::is_sorted(kOptions.begin(), kOptions.end(),
                             [](const Row& a, const Row& b) { return a.name < b.name; }));

}  // namespace

absl::Span<const RequestOption> RequestOptions() { return kOptions; }

const RequestOption* FindOption(std::string_view name, RequestKind endpoint) {
  const auto* row = std::lower_bound(
      kOptions.begin(), kOptions.end(), name,
      [](const Row& option, std::string_view wanted) { return option.name < wanted; });
  for (; row != kOptions.end() && row->name == name; ++row) {
    if ((row->endpoints & endpoint) != 0) return row;
  }
  return nullptr;
}

void CheckOptions(const Json& request, RequestKind endpoint, Fields& fields,
                  std::vector<std::string>* ignored) {
  for (const auto& [name, value] : request.items()) {
    const RequestOption* option = FindOption(name, endpoint);
    if (option == nullptr) {
      ignored->push_back(name);
    } else if (option->support == kRefused && !value.is_null() && !option->neutral(value)) {
      std::string rule = "is not supported here; it may only be left out";
      if (*option->allowed != '\0') rule = rule + " or " + option->allowed;
      if (*option->instead != '\0') rule = rule + " ('" + option->instead + "' is)";
      fields.Fail(name.c_str(), rule);
    }
  }
}

std::string IgnoredFieldsValue(const std::vector<std::string>& names) {
  constexpr size_t kMostNames = 16, kLongestName = 64;
  std::string value;
  for (size_t i = 0; i < names.size() && i < kMostNames; ++i) {
    if (i > 0) value += ", ";
    std::string name = names[i].substr(0, kLongestName);
    for (char& c : name) {
      if (c <= ' ' || c > '~' || c == ',') c = '?';
    }
    value += name;
    if (names[i].size() > kLongestName) value += "...";
  }
  if (names.size() > kMostNames) {
    value += ", and " + std::to_string(names.size() - kMostNames) + " more";
  }
  return value;
}

}  // namespace specfabric::gateway
