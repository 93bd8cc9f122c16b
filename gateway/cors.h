#ifndef SPECFABRIC_GATEWAY_CORS_H_
#define SPECFABRIC_GATEWAY_CORS_H_

// Cross-origin resource sharing (https://fetch.spec.whatwg.org/#http-cors-protocol): which web
// pages may read the gateway's answers in a browser. Answers never allow credentials (cookies);
// a key in a header that the page sets itself is none. Pure.

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "gateway/api_error.h"
#include "gateway/http_server.h"

namespace specfabric::gateway {

class Cors {
 public:
  // Whether `origin` may be in the list: "*" (every page), or scheme://host or scheme://host:port,
  // as browsers send it. InvalidArgument in one line.
  static absl::Status Check(std::string_view origin);

  // Every entry has passed Check. None: no page may, and answers have no header of CORS.
  explicit Cors(const std::vector<std::string>& origins);

  // The headers of an answer to a request with this Origin (empty: none).
  HttpHeaders Headers(std::string_view origin) const;

  // A browser's question before the request itself, to be answered by Preflight: OPTIONS with
  // Origin and Access-Control-Request-Method, and there is a list.
  bool IsPreflight(const HttpRequest& request) const;
  // The answer, without Headers; an error for an origin that is not in the list.
  Parsed<HttpResponse> Preflight(const HttpRequest& request) const;

 private:
  bool Allows(std::string_view origin) const;

  std::vector<std::string> origins_;  // in lower case
  bool all_ = false;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_CORS_H_
