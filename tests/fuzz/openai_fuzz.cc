// The bodies of HTTP requests: the first byte picks the endpoint, the rest is the body. What is
// refused must be sayable as OpenAI's error object; what is accepted must be something that the
// targets accept too.

#include <iterator>
#include <variant>

#include "base/check.h"
#include "gateway/anthropic_parse.h"
#include "gateway/foreign_options.h"
#include "gateway/json_fields.h"
#include "gateway/openai_format.h"
#include "gateway/openai_parse.h"
#include "gateway/responses_parse.h"
#include "schemas/messages.h"
#include "tests/fuzz/target.h"

namespace specfabric {
namespace {

using gateway::Json;

void CheckError(const gateway::ApiError& error) {
  SPECFABRIC_CHECK(error.status >= 400 && error.status < 500);
  SPECFABRIC_CHECK(error.message.find('\n') == std::string::npos);
  SPECFABRIC_CHECK(!gateway::FirstInvalidUtf8(error.message));
  const Json body = Json::parse(gateway::ErrorBody(error), nullptr, /*allow_exceptions=*/false);
  SPECFABRIC_CHECK(body.is_object() && body["error"]["message"] == error.message);
}

void CheckNames(const std::vector<std::string>& ignored) {
  const std::string value = gateway::IgnoredFieldsValue(ignored);
  SPECFABRIC_CHECK(value.size() <= 16 * 80);
  for (const char c : value) SPECFABRIC_CHECK(c >= ' ' && c <= '~');
}

// What our parser accepts, nlohmann's accepts too, and to the same value.
void CheckJson(std::string_view body) {
  const gateway::Parsed<Json> ours = gateway::ParseJson(body);
  if (const auto* error = std::get_if<gateway::ApiError>(&ours)) {
    SPECFABRIC_CHECK(error->status == 400);
    return;
  }
  SPECFABRIC_CHECK(std::get<Json>(ours).dump() == Json::parse(body).dump());
}

// Template variables are an object, if there are any.
void CheckVariables(const std::string& variables) {
  if (variables.empty()) return;
  SPECFABRIC_CHECK(Json::parse(variables, nullptr, /*allow_exceptions=*/false).is_object());
}

void CheckTokens(const std::vector<base::TokenId>& tokens) {
  for (const base::TokenId token : tokens) SPECFABRIC_CHECK(token >= 0);
}

// Chat templates take them as they are.
void CheckMessages(const std::string& messages) {
  const Json list = Json::parse(messages, nullptr, /*allow_exceptions=*/false);
  SPECFABRIC_CHECK(list.is_array() && !list.empty());
  for (const Json& message : list) SPECFABRIC_CHECK(message["role"].is_string());
}

void CheckGeneration(const gateway::GenerationRequest& request) {
  SPECFABRIC_CHECK(request.chat() != request.messages.empty());
  SPECFABRIC_CHECK(request.chat() == request.prompts.empty());
  if (request.chat()) CheckMessages(request.messages);
  for (const gateway::Prompt& prompt : request.prompts) {
    if (const auto* tokens = std::get_if<std::vector<base::TokenId>>(&prompt)) CheckTokens(*tokens);
  }
  CheckTokens(request.stop_token_ids);
  CheckNames(request.ignored_fields);
  CheckVariables(request.template_variables);
  SPECFABRIC_CHECK(request.keep_prompt_tokens >= gateway::kFitPrompt);
  SPECFABRIC_CHECK(request.n >= 1 && request.logprobs >= -1);
  SPECFABRIC_CHECK(request.logprobs <= gateway::kMaxTopLogprobs);
  SPECFABRIC_CHECK(request.stop.size() <= gateway::kMaxStops);
  SPECFABRIC_CHECK(!request.max_tokens || *request.max_tokens >= 0);
  schemas::Submit submit;
  submit.sequence.prompt = {1};
  submit.sequence.sampling = request.sampling;
  submit.sequence.rules = request.rules;
  SPECFABRIC_CHECK(request.grammar.empty() == request.grammar_field.empty());
  submit.sequence.grammar = request.grammar;
  submit.sequence.rules.suppressed_token_ids = request.stop_token_ids;
  submit.sequence.priority = request.priority;
  submit.sequence.tpot_slo = request.tpot_slo;
  submit.sequence.max_draft_tokens = request.max_draft_tokens;
  submit.sequence.drafter = request.drafter;
  SPECFABRIC_CHECK(schemas::Decode<schemas::Submit>(schemas::Encode(submit)).ok());
}

void Check(const gateway::GenerationRequest& request) { CheckGeneration(request); }
void Check(const gateway::TokenizeRequest& request) {
  if (!request.messages.empty()) CheckMessages(request.messages);
  CheckVariables(request.template_variables);
  CheckNames(request.ignored_fields);
}
void Check(const gateway::DetokenizeRequest& request) {
  CheckTokens(request.tokens);
  CheckNames(request.ignored_fields);
}

template <typename T>
void CheckParsed(const gateway::Parsed<T>& parsed) {
  if (const auto* error = std::get_if<gateway::ApiError>(&parsed)) return CheckError(*error);
  Check(std::get<T>(parsed));
}

using Endpoint = void (*)(std::string_view body);
constexpr Endpoint kEndpoints[] = {
    [](std::string_view body) { CheckParsed(gateway::ParseCompletion(body)); },
    [](std::string_view body) { CheckParsed(gateway::ParseChat(body)); },
    [](std::string_view body) { CheckParsed(gateway::ParseTokenize(body)); },
    [](std::string_view body) { CheckParsed(gateway::ParseDetokenize(body)); },
    [](std::string_view body) { CheckParsed(gateway::ParseResponses(body, {})); },
    [](std::string_view body) { CheckParsed(gateway::ParseAnthropic(body, {})); },
    [](std::string_view body) { CheckParsed(gateway::ParseCountTokens(body)); },
};

}  // namespace

std::vector<fuzz::Bytes> fuzz::Seeds() {
  const std::pair<char, const char*> bodies[] = {
      {0, R"({"model":"m","prompt":"Once","max_tokens":8,"temperature":0.5,"top_p":0.9,"seed":1})"},
      {0, R"({"prompt":[[1,2],[3]],"n":2,"stop":["\n","é"],"stop_token_ids":[2],"echo":true,)"
          R"("logprobs":3,"stream":true,"stream_options":{"include_usage":true},"best_of":2})"},
      {0,
       R"({"prompt":[1,2,3],"min_p":0.05,"top_k":-1,"ignore_eos":true,)"
       R"("logit_bias":{"0":-100,"7":2.5},"presence_penalty":-2,"repetition_penalty":1.5,)"
       R"("frequency_penalty":0.5,"min_tokens":3,"return_token_ids":true,"suffix":"","user":"u",)"
       R"("slo_tpot_ms":20,"priority":-3,"cache_salt":"s"})"},
      {1, R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":[)"
          R"({"type":"text","text":"a"},{"type":"text","text":"b"}]}],"max_completion_tokens":4,)"
          R"("logprobs":true,"top_logprobs":2,"response_format":{"type":"text"}})"},
      {1, R"({"messages":[{"role":"assistant","content":null,"tool_calls":[]}],"tools":[],)"
          R"("tool_choice":"auto","add_generation_prompt":false,"stop":"x"})"},
      {1, R"({"messages":[{"role":"assistant","content":null}],"documents":[{"text":"d"}],)"
          R"("chat_template_kwargs":{"enable_thinking":false},"reasoning_effort":"low",)"
          R"("truncate_prompt_tokens":-1,"unknown":1,"a":1,"a":2,"top_p":0})"},
      {0,
       R"({"prompt":"a","seed":-9223372036854775809,"include_stop_str_in_output":true,)"
       R"("skip_special_tokens":false,"return_tokens_as_token_ids":true,"regex":null,)"
       R"("modalities":["text"],"stream_options":{"continuous_usage_stats":false},"stream":true})"},
      {1, R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema",)"
          R"("json_schema":{"name":"n","schema":{"type":"object"}}}})"},
      {0, R"({"prompt":"a","structured_outputs":{"choice":["a","b"]},"guided_json":"{}"})"},
      {0, R"({"prompt":"a","verification":"coupled","speculation":{"enabled":true,"max_tokens":4,)"
          R"("method":"coupled","drafter":"ngram_lookup"}})"},
      {2, R"({"prompt":"text","add_special_tokens":false})"},
      {2, R"({"messages":[{"role":"user","content":"\u00e9\ud83d\ude00"}]})"},
      {3, R"({"model":"m","tokens":[0,1,2147483647]})"},
      {4, R"({"input":"a","instructions":"i","max_output_tokens":3,"reasoning":{"effort":"low"},)"
          R"("text":{"format":{"type":"json_schema","name":"n","schema":{}}},"include":[]})"},
      {4, R"({"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},)"
          R"({"type":"function_call","call_id":"c","name":"f","arguments":"{}"},)"
          R"({"type":"function_call_output","call_id":"c","output":"o"},{"type":"reasoning"}],)"
          R"("tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"allowed_tools",)"
          R"("mode":"auto","tools":[{"name":"f"}]}})"},
      {5, R"({"max_tokens":3,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user",)"
          R"("content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"t"},)"
          R"({"type":"tool_use","id":"i","name":"f","input":{}}]},{"role":"user","content":[)"
          R"({"type":"tool_result","tool_use_id":"i","content":"r"}]}],"stop_sequences":["x"],)"
          R"("tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"tool","name":"f"},)"
          R"("thinking":{"type":"enabled"},"output_config":{"effort":"low"}})"},
      {6, R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"system":"s"})"},
  };
  std::vector<Bytes> seeds;
  for (const auto& [endpoint, body] : bodies)
    seeds.push_back(ToBytes(std::string(1, endpoint) + body));
  return seeds;
}

}  // namespace specfabric

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using specfabric::kEndpoints;
  if (size == 0) return 0;
  const std::string body(reinterpret_cast<const char*>(data) + 1, size - 1);
  specfabric::CheckJson(body);
  kEndpoints[data[0] % std::size(kEndpoints)](body);
  return 0;
}
