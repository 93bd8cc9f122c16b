#ifndef SPECFABRIC_GATEWAY_JSON_FIELDS_H_
#define SPECFABRIC_GATEWAY_JSON_FIELDS_H_

// Reads the fields of a client's JSON and checks types and ranges. Error messages name the field,
// its value and what is allowed.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "gateway/api_error.h"
#include "gateway/json_parse.h"

namespace specfabric::gateway {

// The body as a JSON object. Refuses text that is not UTF-8, not an object, or invalid for
// ParseJson.
Parsed<Json> ParseBody(std::string_view body);

// The first byte of `text` that is part of no well-formed UTF-8 character; nothing if all are.
std::optional<size_t> FirstInvalidUtf8(std::string_view text);

// The member; null if it is absent, or `object` none.
const Json& MemberOf(const Json& object, const char* name);
// The member as a string; null if it is absent or none.
const std::string* StringIn(const Json& object, const char* name);
bool IsEmptyString(const Json& value);

// A value as it is shown in an error line: compact, cut after 40 bytes, whatever its size.
std::string Shown(const Json& value);
// A client's text as shown in an error message: cut if it is long.
std::string ShownText(std::string_view text);

// The fields of one object. Null counts as absent, as OpenAI's clients mean it. Only the first
// error is kept; after it every read returns its fallback.
class Fields {
 public:
  static constexpr int64_t kAny = std::numeric_limits<int64_t>::max();  // no upper limit

  explicit Fields(const Json& object) : object_(object) {}

  const Json* Find(const char* name) const;  // null if absent
  bool Bool(const char* name, bool fallback);
  // In [low, high]. Whole numbers may be written with a fraction or an exponent (1.0, 1e3); a value
  // beyond int64_t counts as the nearest int64_t.
  int64_t Integer(const char* name, int64_t fallback, int64_t low, int64_t high);
  // `ok` checks the range, `allowed` is its description for the error message.
  template <typename Ok>
  double Number(const char* name, double fallback, const char* allowed, Ok ok) {
    const Json* value = Find(name);
    if (value == nullptr) return fallback;
    if (!value->is_number() || !ok(value->get<double>())) {
      Fail(name, std::string("must be a number ") + allowed);
      return fallback;
    }
    return value->get<double>() + 0.0;  // no negative zero
  }
  // Any 64 bits, given as a signed or an unsigned whole number.
  uint64_t Seed(const char* name, uint64_t fallback);
  std::string String(const char* name, std::string fallback);

  // Records "`name` must be ..., got ...".
  void Fail(const char* name, const std::string& rule);
  void Fail(ApiError error);

  bool ok() const { return !error_; }
  const std::optional<ApiError>& error() const { return error_; }

 private:
  const Json& object_;
  std::optional<ApiError> error_;
};

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_JSON_FIELDS_H_
