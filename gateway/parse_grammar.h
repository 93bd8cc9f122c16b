#ifndef SPECFABRIC_GATEWAY_PARSE_GRAMMAR_H_
#define SPECFABRIC_GATEWAY_PARSE_GRAMMAR_H_

// What a request says about the form of the answer, in OpenAI's words (response_format), vLLM's
// (structured_outputs, and guided_json, guided_regex, guided_choice, guided_grammar before them),
// SGLang's (json_schema, regex, ebnf) and llama.cpp's (json_schema, response_format with a schema,
// grammar).

#include "gateway/json_fields.h"
#include "gateway/openai_parse.h"

namespace specfabric::gateway {

// At most one of the fields may describe a form.
void ReadGrammar(Fields& fields, GenerationRequest& request);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_PARSE_GRAMMAR_H_
