// Request targets. What is accepted is a path without control characters that is its own decoding
// again once it is escaped; what is refused is refused with one short line.

#include <string>
#include <variant>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "gateway/request_target.h"
#include "tests/fuzz/target.h"

namespace specfabric {

std::vector<fuzz::Bytes> fuzz::Seeds() {
  std::vector<Bytes> seeds;
  for (const char* target :
       {"/livez", "/v1/models/Org%2FMy-Model?x=%41", "http://host:1/v1/models/%E6%BC%A2#f", "*",
        "https://[::1]/", "host:443", "/%00", "/%4", "HTTP://h?q"}) {
    seeds.push_back(ToBytes(target));
  }
  return seeds;
}

}  // namespace specfabric

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using specfabric::gateway::ApiError;
  const std::string target(reinterpret_cast<const char*>(data), size);
  const auto parsed = specfabric::gateway::PathOf(target);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    SPECFABRIC_CHECK(error->status == 400 && error->message.size() < 600);
    for (const char c : error->message) SPECFABRIC_CHECK(c >= 0x20 && c < 0x7F);
    return 0;
  }
  const auto& path = std::get<std::string>(parsed);
  SPECFABRIC_CHECK(path.starts_with('/') && path.size() <= size + 1);
  std::string escaped = "/";
  for (const char c : path.substr(1)) {
    SPECFABRIC_CHECK(static_cast<unsigned char>(c) >= 0x20 && c != 0x7F);
    escaped += absl::StrFormat("%%%02x", static_cast<unsigned char>(c));
  }
  const auto again = specfabric::gateway::PathOf(escaped);
  SPECFABRIC_CHECK(std::get<std::string>(again) == path);
  return 0;
}
