#ifndef SPECFABRIC_TESTS_GATEWAY_PARSED_H_
#define SPECFABRIC_TESTS_GATEWAY_PARSED_H_

// Results that a parser must have accepted or refused; otherwise the test fails and continues.

#include <utility>
#include <variant>

#include "gateway/api_error.h"
#include "gtest/gtest.h"

namespace specfabric::gateway {

template <typename T>
T Good(Parsed<T> parsed) {
  if (auto* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << error->message;
    return {};
  }
  return std::get<T>(std::move(parsed));
}

template <typename T>
ApiError Bad(Parsed<T> parsed) {
  if (!std::holds_alternative<ApiError>(parsed)) {
    ADD_FAILURE() << "was accepted";
    return {};
  }
  return std::get<ApiError>(std::move(parsed));
}

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_TESTS_GATEWAY_PARSED_H_
