#include "gateway/request_target.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace specfabric::gateway {
namespace {

constexpr size_t kMaxShown = 100;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

// The part of an absolute-form target that begins with its path; nothing for another form.
bool CutAuthority(std::string_view* target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    const absl::string_view given(target->data(), std::min(target->size(), scheme.size()));
    if (!absl::EqualsIgnoreCase(given, absl::string_view(scheme.data(), scheme.size()))) continue;
    const std::string_view rest = target->substr(scheme.size());
    const size_t end = rest.find_first_of("/?#");
    if (end == 0 || rest.empty()) return false;  // no host
    *target = end == std::string_view::npos ? std::string_view() : rest.substr(end);
    return true;
  }
  return false;
}

}  // namespace

std::string ShownTarget(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, kMaxShown)) {
    if (IsControl(c) || static_cast<unsigned char>(c) >= 0x80) {
      absl::StrAppendFormat(&shown, "%%%02X", static_cast<unsigned char>(c));
    } else {
      shown.push_back(c);
    }
  }
  if (text.size() > kMaxShown) shown += "...";
  return shown;
}

Parsed<std::string> PathOf(std::string_view target) {
  std::string_view rest = target;
  if (!rest.starts_with('/') && !CutAuthority(&rest)) {
    return BadRequest("", absl::StrCat("the request target is '", ShownTarget(target),
                                       "'; allowed is a path that begins with '/', or "
                                       "'http://HOST/PATH'"));
  }
  const std::string_view raw = rest.substr(0, rest.find_first_of("?#"));
  std::string path;
  path.reserve(raw.size());
  for (size_t i = 0; i < raw.size(); ++i) {
    char c = raw[i];
    if (c == '%') {
      const int high = i + 2 < raw.size() ? HexDigit(raw[i + 1]) : -1;
      const int low = i + 2 < raw.size() ? HexDigit(raw[i + 2]) : -1;
      if (high < 0 || low < 0) {
        return BadRequest(
            "", absl::StrCat("the path holds '", ShownTarget(raw.substr(i, 3)), "' at byte ", i,
                             "; allowed behind '%' are two hexadecimal digits"));
      }
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (IsControl(c)) {
      return BadRequest("", absl::StrFormat("the path holds the control character 0x%02x; allowed "
                                            "are printable characters",
                                            static_cast<unsigned char>(c)));
    }
    path.push_back(c);
  }
  if (path.empty()) path.push_back('/');
  return path;
}

}  // namespace specfabric::gateway
