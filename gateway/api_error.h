#ifndef SPECFABRIC_GATEWAY_API_ERROR_H_
#define SPECFABRIC_GATEWAY_API_ERROR_H_

// OpenAI's error object and the HTTP status that goes with it.

#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"

namespace specfabric::gateway {

struct ApiError {
  int status = 400;
  std::string message = {};  // one line: what was given, what is allowed
  std::string type = "invalid_request_error";
  std::string param = {};  // the field at fault, empty for none
  std::string code = {};   // for programs, empty for none
  int retry_after = 0;     // seconds, for the Retry-After header; 0: no header
};

template <typename T>
using Parsed = std::variant<T, ApiError>;

inline ApiError BadRequest(std::string param, std::string message) {
  return {.message = std::move(message), .param = std::move(param)};
}

// The three errors after which a client should try again; they carry Retry-After.
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

// Of a status that a client's text of the field `param` has led to, or a fault of the server.
inline ApiError FromStatus(const absl::Status& status, std::string param) {
  std::string message(status.message());
  if (absl::IsInvalidArgument(status)) return BadRequest(std::move(param), std::move(message));
  return ServerError(std::move(message));
}

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_API_ERROR_H_
