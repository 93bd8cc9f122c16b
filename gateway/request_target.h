#ifndef SPECFABRIC_GATEWAY_REQUEST_TARGET_H_
#define SPECFABRIC_GATEWAY_REQUEST_TARGET_H_

// The path that a request's target names (RFC 9112, 3.2; RFC 3986, 2.1). Pure.

#include <string>
#include <string_view>

#include "gateway/api_error.h"

namespace specfabric::gateway {

// The path of a target in origin form ("/v1/models?x") or absolute form ("http://host/v1/models"),
// percent-decoded, without the query. Refuses the forms that only proxies serve (authority form,
// asterisk form), escapes that are none, and control characters. The query is cut off before
// anything is decoded, so "%3F" and "%2F" are characters of a name.
Parsed<std::string> PathOf(std::string_view target);

// `text` for an error line: cut after 100 bytes, control characters and bytes beyond ASCII shown as
// their escapes.
std::string ShownTarget(std::string_view text);

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_REQUEST_TARGET_H_
