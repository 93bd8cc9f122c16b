#ifndef SPECFABRIC_GATEWAY_REQUEST_ID_H_
#define SPECFABRIC_GATEWAY_REQUEST_ID_H_

// The header x-request-id, by which clients, proxies and logs name one request.

#include <cstddef>
#include <string>
#include <string_view>

namespace specfabric::gateway {

constexpr const char* kRequestIdHeader = "x-request-id";
constexpr size_t kMaxRequestId = 128;  // bytes

// `given` if it has 1 to 128 bytes, all of them visible ASCII, so that it may stand in a log and in
// a header; otherwise a new one, which no other process gives.
std::string RequestIdOf(std::string_view given);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_REQUEST_ID_H_
