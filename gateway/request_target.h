#ifndef SPECFABRIC_GATEWAY_REQUEST_TARGET_H_
#define SPECFABRIC_GATEWAY_REQUEST_TARGET_H_

// The path in a request's target (RFC 9112, 3.2; RFC 3986, 2.1). Pure.

#include <string>
#include <string_view>

#include "gateway/api_error.h"

namespace specfabric::gateway {

// The path of a target in origin form ("/v1/models?x") or absolute form ("http://host/v1/models"),
// percent-decoded, without the query. Refuses the forms that only proxies serve (authority form,
// asterisk form), invalid escapes, and control characters. The query is removed before decoding, so
// "%3F" and "%2F" are ordinary characters of the path.
Parsed<std::string> PathOf(std::string_view target);

// `text` for an error message: cut after 100 bytes, with control characters and bytes beyond ASCII
// escaped.
std::string ShownTarget(std::string_view text);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_REQUEST_TARGET_H_
