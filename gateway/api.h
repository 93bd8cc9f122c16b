#ifndef SPECFABRIC_GATEWAY_API_H_
#define SPECFABRIC_GATEWAY_API_H_

// The APIs that generate. All but the first are conversations.

#include <cstdint>

namespace specfabric::gateway {

enum class Api : uint8_t {
  kCompletions,  // OpenAI's /v1/completions
  kChat,         // OpenAI's /v1/chat/completions
  kResponses,    // OpenAI's /v1/responses
  kAnthropic,    // Anthropic's /v1/messages
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_API_H_
