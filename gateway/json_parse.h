#ifndef SPECFABRIC_GATEWAY_JSON_PARSE_H_
#define SPECFABRIC_GATEWAY_JSON_PARSE_H_

// Parses untrusted JSON in time linear in its size. nlohmann's own parser compares each key of an
// ordered object with all keys before it; this one builds the same value from nlohmann's SAX
// events, and stops at the first limit that the text exceeds, before it allocates more memory.

#include <cstddef>
#include <string_view>

#include "gateway/api_error.h"
#include "nlohmann/json.hpp"

namespace specfabric::gateway {

// Members keep their order: chat templates print them.
using Json = nlohmann::ordered_json;

struct JsonLimits {
  int depth = 64;           // of nested lists and objects: code that reads the value is recursive
  size_t keys = 1024;       // of one object
  size_t values = 2 << 20;  // of the text, at up to 80 bytes of memory each
};

// The one JSON value of `text`, which must be UTF-8. Of equal keys the last value counts, at the
// position of the first. Refuses text that exceeds a limit, numbers that a double cannot hold,
// unpaired surrogates, and anything but white space after the value.
Parsed<Json> ParseJson(std::string_view text, const JsonLimits& limits = {});

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_JSON_PARSE_H_
