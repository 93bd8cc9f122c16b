#ifndef SPECFABRIC_GATEWAY_RESPONSES_FORMAT_H_
#define SPECFABRIC_GATEWAY_RESPONSES_FORMAT_H_

// Answers of /v1/responses, in the form of OpenAI's Responses API. Pure.

#include <memory>
#include <string>

#include "gateway/answer_writer.h"

namespace specfabric::gateway {

// `echoed`: a JSON object of what an answer repeats of its request.
std::unique_ptr<AnswerWriter> MakeResponsesWriter(const std::string& echoed);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_RESPONSES_FORMAT_H_
