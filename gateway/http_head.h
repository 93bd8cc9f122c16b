#ifndef SPECFABRIC_GATEWAY_HTTP_HEAD_H_
#define SPECFABRIC_GATEWAY_HTTP_HEAD_H_

// Checks of a request's header that RFC 9110 and 9112 require besides its syntax, which Boost.Beast
// checks.

#include <optional>

#include "boost/beast/http/message.hpp"
#include "gateway/api_error.h"

namespace specfabric::gateway {

// The error that a request with this header is refused with, before its body is read: a missing,
// second or malformed Host, a body whose end cannot be known (Transfer-Encoding other than
// "chunked": a proxy in front may see it end elsewhere), or a compressed body.
std::optional<ApiError> CheckHead(
    const boost::beast::http::request_header<boost::beast::http::fields>& head);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_HTTP_HEAD_H_
