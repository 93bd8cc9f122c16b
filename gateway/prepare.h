#ifndef SPECFABRIC_GATEWAY_PREPARE_H_
#define SPECFABRIC_GATEWAY_PREPARE_H_

// Turns a parsed request into the sequences to generate.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/types.h"
#include "gateway/api_error.h"
#include "gateway/openai_parse.h"
#include "gateway/prepare_chat.h"
#include "schemas/messages.h"
#include "tokenizer/tokenizer.h"

namespace specfabric::gateway {

struct ServedModel {
  std::string name;
  int32_t context = 0;     // limit of a sequence's tokens, prompt and output
  int32_t vocabulary = 0;  // token ids are below it
  // Other names that requests may call it by. Null: none.
  std::shared_ptr<const std::vector<std::string>> aliases = nullptr;
};

struct PreparedPrompt {
  std::vector<base::TokenId> ids;
  std::string text;  // as in the request, if it has the prompt as text
  bool has_text = false;
};

struct Prepared {
  GenerationRequest request;
  std::vector<PreparedPrompt> prompts;
  std::vector<schemas::Submit> submits;  // [prompt][n], request ids not yet given
  int64_t prompt_tokens = 0;             // counts each prompt once
};

// Error 404 for the name of another model; nothing for a name of the served one, or an empty name.
std::optional<ApiError> CheckModel(const std::string& asked, const ServedModel& model);

// Encodes and checks the prompts, and limits max_tokens to the room in the context. `draw_seed`
// returns 64 random bits; it is called once for each prompt if the request has no seed.
Parsed<Prepared> Prepare(GenerationRequest request, const tokenizer::Tokenizer& tokenizer,
                         const ChatFormat& format, const ServedModel& model,
                         const std::function<uint64_t()>& draw_seed);

// The token ids of a /tokenize request.
Parsed<std::vector<base::TokenId>> Tokenize(const TokenizeRequest& request,
                                            const tokenizer::Tokenizer& tokenizer);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_PREPARE_H_
