#include "gateway/json_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <variant>

namespace specfabric::gateway {
namespace {

constexpr size_t kLongestShown = 40;  // bytes of a value in an error line

// The length of the character that starts at `i`, 0 if none does (RFC 3629's table).
size_t CharacterAt(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) -> unsigned {
    return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0u;
  };
  const auto tail = [&](size_t k) { return (byte(k) & 0xC0) == 0x80; };
  const unsigned lead = byte(0), second = byte(1);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return tail(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    if (lead == 0xE0 && second < 0xA0) return 0;  // overlong
    if (lead == 0xED && second > 0x9F) return 0;  // surrogate
    return tail(1) && tail(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    if (lead == 0xF0 && second < 0x90) return 0;  // overlong
    if (lead == 0xF4 && second > 0x8F) return 0;  // beyond U+10FFFF
    return tail(1) && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::optional<size_t> FirstInvalidUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = CharacterAt(text, i);
    if (length == 0) return i;
    i += length;
  }
  return std::nullopt;
}

Parsed<Json> ParseBody(std::string_view body) {
  if (const auto invalid = FirstInvalidUtf8(body)) {
    return BadRequest("", "the body is not valid UTF-8 at byte " + std::to_string(*invalid));
  }
  Parsed<Json> json = ParseJson(body);
  if (const auto* value = std::get_if<Json>(&json); value != nullptr && !value->is_object()) {
    return BadRequest("", std::string("the body must be a JSON object, got ") + value->type_name());
  }
  return json;
}

const Json& MemberOf(const Json& object, const char* name) {
  static const Json none;
  if (!object.is_object()) return none;
  const auto member = object.find(name);
  return member == object.end() ? none : *member;
}

const std::string* StringIn(const Json& object, const char* name) {
  return MemberOf(object, name).get_ptr<const std::string*>();
}

bool IsEmptyString(const Json& value) {
  return value.is_string() && value.get_ref<const std::string&>().empty();
}

std::string Shown(const Json& value) {
  const auto large = [](const Json& part) {
    return part.is_structured()
               ? !part.empty()
               : part.is_string() && part.get_ref<const std::string&>().size() > kLongestShown;
  };
  if (value.is_structured() &&
      (value.size() > 8 || std::any_of(value.begin(), value.end(), large))) {
    return std::string(value.is_array() ? "a list" : "an object") + " of " +
           std::to_string(value.size());
  }
  const auto dump = [](const Json& part) {
    return part.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  };
  std::string text;
  if (value.is_string()) {
    text = dump(value.get_ref<const std::string&>().substr(0, kLongestShown));
  } else {
    text = dump(value);
  }
  if (text.size() > kLongestShown) text = text.substr(0, kLongestShown) + "...";
  return text;
}

std::string ShownText(std::string_view text) {
  constexpr size_t kLongest = 200;
  if (text.size() <= kLongest) return std::string(text);
  size_t end = kLongest;
  while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // whole characters
  return std::string(text.substr(0, end)) + "...";
}

const Json* Fields::Find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool Fields::Bool(const char* name, bool fallback) {
  const Json* value = Find(name);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    Fail(name, "must be true or false");
    return fallback;
  }
  return value->get<bool>();
}

int64_t Fields::Integer(const char* name, int64_t fallback, int64_t low, int64_t high) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  const Json* value = Find(name);
  if (value == nullptr) return fallback;
  std::optional<int64_t> given;
  if (value->is_number_unsigned()) {
    given = static_cast<int64_t>(std::min<uint64_t>(value->get<uint64_t>(), kAny));
  } else if (value->is_number_integer()) {
    given = value->get<int64_t>();
  } else if (value->is_number_float()) {
    const double number = value->get<double>();
    if (std::trunc(number) == number) {
      given = number >= 0x1p63 ? kAny : number < -0x1p63 ? kMin : static_cast<int64_t>(number);
    }
  }
  if (!given || *given < low || *given > high) {
    std::string range;
    if (low != kMin && high != kAny) {
      range = " from " + std::to_string(low) + " to " + std::to_string(high);
    } else if (low != kMin) {
      range = ", at least " + std::to_string(low);
    }
    Fail(name, "must be a whole number" + range);
    return fallback;
  }
  return *given;
}

uint64_t Fields::Seed(const char* name, uint64_t fallback) {
  const Json* value = Find(name);
  if (value == nullptr) return fallback;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  if (value->is_number_integer()) return static_cast<uint64_t>(value->get<int64_t>());
  // A whole number beyond 64 bits is read as a double too; those from -2^63 down round to it.
  if (value->is_number_float()) {
    const double number = value->get<double>();
    if (std::trunc(number) == number && number > -0x1p63 && number < 0x1p64) {
      return number < 0 ? static_cast<uint64_t>(static_cast<int64_t>(number))
                        : static_cast<uint64_t>(number);
    }
  }
  Fail(name, "must be a whole number from -2^63 to 2^64 - 1");
  return fallback;
}

std::string Fields::String(const char* name, std::string fallback) {
  const Json* value = Find(name);
  if (value == nullptr) return fallback;
  if (!value->is_string()) {
    Fail(name, "must be a string");
    return fallback;
  }
  return value->get<std::string>();
}

void Fields::Fail(const char* name, const std::string& rule) {
  const Json* value = Find(name);
  Fail(BadRequest(name, std::string("'") + name + "' " + rule + ", got " +
                            (value == nullptr ? "nothing" : Shown(*value))));
}

void Fields::Fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

}  // namespace specfabric::gateway
