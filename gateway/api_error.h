#ifndef SPECFABRIC_GATEWAY_API_ERROR_H_
#define SPECFABRIC_GATEWAY_API_ERROR_H_

// What a client is told when its request cannot be served: OpenAI's error object and its status.

#include <string>
#include <utility>
#include <variant>

namespace specfabric::gateway {

struct ApiError {
  int status = 400;
  std::string message = {};  // one line: what was given, what is allowed
  std::string type = "invalid_request_error";
  std::string param = {};  // the field at fault, empty for none
  std::string code = {};   // for programs, empty for none
  int retry_after = 0;     // s after which to try again; 0: says nothing of it
};

template <typename T>
using Parsed = std::variant<T, ApiError>;

inline ApiError BadRequest(std::string param, std::string message) {
  return {.message = std::move(message), .param = std::move(param)};
}

// The three of which a client should try again later; answered with Retry-After.
inline ApiError Overloaded(std::string message, int retry_after) {
  return {.status = 429,
          .message = std::move(message),
          .type = "rate_limit_error",
          .code = "overloaded",
          .retry_after = retry_after};
}
inline ApiError NoTarget(std::string message) {
  return {.status = 503,
          .message = std::move(message),
          .type = "server_error",
          .code = "no_target",
          .retry_after = 1};
}
inline ApiError Draining() {
  return {.status = 503,
          .message = "the gateway is draining and takes no new requests",
          .type = "server_error",
          .code = "draining",
          .retry_after = 1};
}

inline ApiError TimedOut(std::string message) {
  return {.status = 504, .message = std::move(message), .type = "timeout_error", .code = "timeout"};
}

inline ApiError ServerError(std::string message) {
  return {.status = 500, .message = std::move(message), .type = "server_error"};
}

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_API_ERROR_H_
