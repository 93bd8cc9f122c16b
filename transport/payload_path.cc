#include "transport/payload_path.h"

#include <ucp/api/ucp.h>

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "transport/ucx_context.h"

namespace specfabric::transport {
namespace {

using Words = std::vector<std::string>;

// UCX ends with what it expects of the protocol: "4012.2 MB/s 250.00 us", or "- not available".
void DropEstimate(Words* words) {
  const size_t count = words->size();
  if (count >= 4 && words->back() == "us" && (*words)[count - 3] == "MB/s") {
    words->resize(count - 4);
  } else if (count >= 3 && words->back() == "available" && (*words)[count - 3] == "-") {
    words->resize(count - 3);
  }
}

}  // namespace

// "{completed|proto_send} am_send(rndv) from host memory length 1048576 zero-copy read from remote
// cma/memory 4012.2 MB/s 250.00 us"; with several wires "50% on rc_mlx5/mlx5_0:1 and 50% on ...".
PayloadPath ParseRequestInfo(absl::string_view info) {
  Words words = absl::StrSplit(info, ' ', absl::SkipEmpty());
  // The older protocols name no memory, and after the length only the wire of the announcement.
  const auto from = std::find(words.begin(), words.end(), "from");
  const auto length = std::find(from, words.end(), "length");
  if (words.end() - length < 2) return {};
  words.erase(words.begin(), length + 2);
  DropEstimate(&words);
  Words wires, protocol;
  for (const std::string& word : words) {
    if (absl::StrContains(word, '/')) {
      wires.push_back(std::string(absl::StripSuffix(word, ",")));
    } else if (wires.empty()) {
      protocol.push_back(word);
    }
  }
  if (wires.empty()) return {};
  if (protocol.size() >= 2 && protocol.back() == "on") protocol.resize(protocol.size() - 2);
  return {absl::StrJoin(wires, " and "), absl::StrJoin(protocol, " ")};
}

PayloadPath PathOfSend(void* request) {
  if (!HasMatureProtocols()) return {};
  char text[512] = "";
  ucp_request_attr_t attributes = {};
  attributes.field_mask =
      UCP_REQUEST_ATTR_FIELD_INFO_STRING | UCP_REQUEST_ATTR_FIELD_INFO_STRING_SIZE;
  attributes.debug_string = text;
  attributes.debug_string_size = sizeof(text);
  if (ucp_request_query(request, &attributes) != UCS_OK) return {};
  return ParseRequestInfo(text);
}

}  // namespace specfabric::transport
