#ifndef SPECFABRIC_GATEWAY_PREPARE_H_
#define SPECFABRIC_GATEWAY_PREPARE_H_

// From a parsed request to the sequences a target is asked for.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/types.h"
#include "gateway/api_error.h"
#include "gateway/openai_parse.h"
#include "schemas/messages.h"
#include "tokenizer/tokenizer.h"

namespace specfabric::gateway {

struct ServedModel {
  std::string name;
  int32_t context = 0;     // tokens a sequence may have, prompt and output
  int32_t vocabulary = 0;  // ids below it
};

struct PreparedPrompt {
  std::vector<base::TokenId> ids;
  std::string text;  // as given, if it was given as text
  bool has_text = false;
};

struct Prepared {
  GenerationRequest request;
  std::vector<PreparedPrompt> prompts;
  std::vector<schemas::Submit> submits;  // [prompt][n], request ids not yet given
  int64_t prompt_tokens = 0;             // each prompt once
};

// NotFound-like error (404) for another model's name; nothing for ours, or for none.
std::optional<ApiError> CheckModel(const std::string& asked, const ServedModel& model);

// Encodes and checks the prompts, and cuts max_tokens down to what the context leaves. `draw_seed`
// gives 64 random bits; it is asked once a prompt if the request has no seed.
Parsed<Prepared> Prepare(GenerationRequest request, const tokenizer::Tokenizer& tokenizer,
                         const ServedModel& model, const std::function<uint64_t()>& draw_seed);

// The token ids of a /tokenize request.
Parsed<std::vector<base::TokenId>> Tokenize(const TokenizeRequest& request,
                                            const tokenizer::Tokenizer& tokenizer);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_PREPARE_H_
