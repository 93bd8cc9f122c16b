#ifndef SPECFABRIC_GATEWAY_JSON_PARSE_H_
#define SPECFABRIC_GATEWAY_JSON_PARSE_H_

// JSON from outside as a value, in time linear in its size. nlohmann's own parser compares each key
// of an ordered object with all keys before it; this one builds the same value from nlohmann's
// tokens, and stops at the first bound that the text passes, before memory is spent on the rest.

#include <cstddef>
#include <string_view>

#include "gateway/api_error.h"
#include "nlohmann/json.hpp"

namespace specfabric::gateway {

// Members keep their order: chat templates print them.
using Json = nlohmann::ordered_json;

struct JsonLimits {
  int depth = 64;           // of nested lists and objects; what comes after parsing is recursive
  size_t keys = 1024;       // of one object
  size_t values = 2 << 20;  // of the text, at up to 80 bytes of memory each
};

// The one JSON value of `text`, which must be UTF-8. Of equal keys the last one's value counts, at
// the place of the first. Refused: what passes a limit, numbers beyond a double, surrogates without
// their other half, and anything but white space after the value.
Parsed<Json> ParseJson(std::string_view text, const JsonLimits& limits = {});

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_JSON_PARSE_H_
