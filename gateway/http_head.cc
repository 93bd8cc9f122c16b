#include "gateway/http_head.h"

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "boost/beast/core/string.hpp"
#include "boost/beast/http/fields.hpp"
#include "gateway/request_target.h"

namespace specfabric::gateway {

namespace beast = boost::beast;
namespace http = beast::http;
using Head = http::request_header<http::fields>;

namespace {

std::string_view ValueOf(const Head& head, http::field name) {
  const auto value = head[name];
  return {value.data(), value.size()};
}

std::optional<ApiError> CheckHost(const Head& head) {
  const size_t count = head.count(http::field::host);
  if (count > 1) {
    return BadRequest("", absl::StrCat("the request has ", count, " Host headers; allowed is one"));
  }
  if (count == 0 && head.version() >= 11) {
    return BadRequest("", "the request has no Host header; HTTP/1.1 needs one");
  }
  const std::string_view host = ValueOf(head, http::field::host);
  if (host.find_first_of(" \t,/?#@\\") != std::string_view::npos) {
    return BadRequest("", absl::StrCat("the Host header is '", ShownTarget(host),
                                       "'; allowed is HOST or HOST:PORT"));
  }
  return std::nullopt;
}

std::optional<ApiError> CheckCodings(const Head& head) {
  const size_t transfer = head.count(http::field::transfer_encoding);
  const std::string_view coding = ValueOf(head, http::field::transfer_encoding);
  if (transfer > 1 ||
      (transfer == 1 && !beast::iequals(head[http::field::transfer_encoding], "chunked"))) {
    return BadRequest("", absl::StrCat("Transfer-Encoding is '", ShownTarget(coding),
                                       transfer > 1 ? "' and more" : "'", "; allowed is chunked"));
  }
  if (transfer == 1 && head.version() < 11) {
    return BadRequest("", "Transfer-Encoding came with HTTP/1.0, which has none");
  }
  for (auto [field, end] = head.equal_range(http::field::content_encoding); field != end; ++field) {
    const std::string_view value(field->value().data(), field->value().size());
    if (value.empty() || beast::iequals(field->value(), "identity")) continue;
    return ApiError{.status = 415,
                    .message = absl::StrCat("Content-Encoding is '", ShownTarget(value),
                                            "'; allowed is identity (no compression)")};
  }
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> CheckHead(const Head& head) {
  if (auto error = CheckHost(head)) return error;
  return CheckCodings(head);
}

}  // namespace specfabric::gateway
