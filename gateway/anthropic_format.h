#ifndef SPECFABRIC_GATEWAY_ANTHROPIC_FORMAT_H_
#define SPECFABRIC_GATEWAY_ANTHROPIC_FORMAT_H_

// Answers of /v1/messages, in the form of Anthropic's Messages API. Pure.

#include <cstdint>
#include <memory>
#include <string>

#include "gateway/answer_writer.h"

namespace specfabric::gateway {

std::unique_ptr<AnswerWriter> MakeAnthropicWriter();

std::string AnthropicErrorBody(const ApiError& error);
std::string TokenCountBody(int64_t tokens);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_ANTHROPIC_FORMAT_H_
