#include "gateway/cors.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gateway/request_target.h"

namespace specfabric::gateway {
namespace {

// Headers of answers that a page may read besides those that every page may.
constexpr const char* kExposed = "x-request-id, specfabric-ignored-fields, retry-after";
constexpr const char* kMethods = "GET, HEAD, POST";
// How long a browser may remember the answer to a preflight, in seconds: Chromium's limit.
constexpr const char* kMaxAge = "7200";

std::string Lower(std::string_view text) {
  return absl::AsciiStrToLower(absl::string_view(text.data(), text.size()));
}

// Whether it is a list of header names, as in Access-Control-Request-Headers.
bool IsNames(std::string_view text) {
  constexpr std::string_view kOfTokens = "!#$%&'*+-.^_`|~";  // RFC 9110, 5.6.2
  return std::all_of(text.begin(), text.end(), [&](unsigned char c) {
    return absl::ascii_isalnum(c) ||
           kOfTokens.find(static_cast<char>(c)) != std::string_view::npos || c == ',' || c == ' ';
  });
}

}  // namespace

absl::Status Cors::Check(std::string_view origin) {
  if (origin == "*") return absl::OkStatus();
  const size_t scheme = origin.find("://");
  const std::string_view host = scheme == std::string_view::npos ? "" : origin.substr(scheme + 3);
  const bool good =
      scheme > 0 && !host.empty() &&
      std::all_of(origin.begin(), origin.end(),
                  [](unsigned char c) { return absl::ascii_isgraph(c); }) &&
      host.find_first_of("/?#@,*\\") == std::string_view::npos &&
      std::all_of(origin.begin(), origin.begin() + static_cast<ptrdiff_t>(scheme),
                  [](unsigned char c) { return absl::ascii_isalnum(c) || c == '-' || c == '+'; });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", ShownTarget(origin),
                   "' is no origin; allowed are scheme://host or scheme://host:port, such as "
                   "https://app.example.com, and * for all"));
}

Cors::Cors(const std::vector<std::string>& origins) {
  for (const std::string& origin : origins) {
    if (origin == "*") all_ = true;
    origins_.push_back(Lower(origin));
  }
}

bool Cors::Allows(std::string_view origin) const {
  if (origin.empty()) return false;
  return all_ || std::find(origins_.begin(), origins_.end(), Lower(origin)) != origins_.end();
}

HttpHeaders Cors::Headers(std::string_view origin) const {
  if (origins_.empty()) return {};
  HttpHeaders headers;
  // Caches must not give the answer to one page to another.
  if (!all_) headers.emplace_back("Vary", "Origin");
  if (!Allows(origin)) return headers;
  headers.emplace_back("Access-Control-Allow-Origin", all_ ? "*" : std::string(origin));
  headers.emplace_back("Access-Control-Expose-Headers", kExposed);
  return headers;
}

bool Cors::IsPreflight(const HttpRequest& request) const {
  return !origins_.empty() && request.method == "OPTIONS" && !request.origin.empty() &&
         !request.requested_method.empty();
}

Parsed<HttpResponse> Cors::Preflight(const HttpRequest& request) const {
  if (!Allows(request.origin)) {
    return ApiError{.status = 403,
                    .message = absl::StrCat("pages of '", ShownTarget(request.origin),
                                            "' may not use this server; allowed are those of "
                                            "--cors_origins"),
                    .code = "origin_not_allowed"};
  }
  HttpResponse response{.status = 204, .content_type = ""};
  response.headers = {{"Access-Control-Allow-Methods", kMethods},
                      {"Access-Control-Max-Age", kMaxAge}};
  // Whatever headers a page sends, it may: SDKs add their own, and none of them has a meaning that
  // a page could abuse. "*" would leave out Authorization.
  if (!request.requested_headers.empty() && IsNames(request.requested_headers)) {
    response.headers.emplace_back("Access-Control-Allow-Headers", request.requested_headers);
  }
  return response;
}

}  // namespace specfabric::gateway
