#include "gateway/call_scanner.h"

#include <utility>

#include "gateway/json_parse.h"
#include "gateway/text_marks.h"

namespace specfabric::gateway {
namespace {

// The value of a JSON string with its quotes; nothing if it is none.
std::optional<std::string> Unquoted(const std::string& text) {
  const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_string()) return std::nullopt;
  return value.get<std::string>();
}

}  // namespace

std::string CallScanner::TakeArguments() { return std::exchange(arguments_, {}); }

CallScanner::State CallScanner::Push(char c) {
  switch (where_) {
    case Where::kInKey:
      return Key(c);
    case Where::kInValue:
      return Value(c);
    case Where::kDone:
      return State::kBad;
    default:
      break;
  }
  if (IsSpace(c)) return State::kGoesOn;
  switch (where_) {
    case Where::kOpen:
      where_ = Where::kFirstKey;
      return c == '{' ? State::kGoesOn : State::kBad;
    case Where::kFirstKey:
    case Where::kKey:
      where_ = Where::kInKey;
      key_ = c;
      return c == '"' ? State::kGoesOn : State::kBad;
    case Where::kColon:
      where_ = Where::kValue;
      return c == ':' ? State::kGoesOn : State::kBad;
    case Where::kValue:
      return Begin(c);
    default:
      return AfterValue(c);
  }
}

CallScanner::State CallScanner::Key(char c) {
  key_ += c;
  if (escaped_) {
    escaped_ = false;
  } else if (c == '\\') {
    escaped_ = true;
  } else if (c == '"') {
    const auto key = Unquoted(key_);
    if (!key) return State::kBad;
    key_ = *key;
    if ((key_ == "name" && name_) || (IsArguments() && has_arguments_)) return State::kBad;
    where_ = Where::kColon;
  }
  return State::kGoesOn;
}

CallScanner::State CallScanner::Begin(char c) {
  where_ = Where::kInValue;
  value_.clear();
  depth_ = 0;
  in_string_ = escaped_ = false;
  is_string_ = c == '"';
  is_scalar_ = !is_string_ && c != '{' && c != '[';
  if (key_ == "name" && !is_string_) return State::kBad;
  // Arguments that are null are none.
  if (IsArguments() && c != '{' && c != '"' && c != 'n') return State::kBad;
  return Value(c);
}

CallScanner::State CallScanner::Value(char c) {
  if (is_scalar_ && (c == ',' || c == '}' || IsSpace(c))) {
    const State ended = EndValue();
    return ended == State::kBad || IsSpace(c) ? ended : AfterValue(c);
  }
  const bool streams = IsArguments() && !is_string_ && !is_scalar_;
  if (streams) {
    arguments_ += c;
  } else if (key_ == "name" || IsArguments()) {
    value_ += c;
  }
  if (escaped_) {
    escaped_ = false;
  } else if (in_string_) {
    escaped_ = c == '\\';
    if (c == '"') in_string_ = false;
  } else if (c == '"') {
    in_string_ = true;
    return State::kGoesOn;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if (c == '}' || c == ']') {
    --depth_;
  }
  const bool ended = !is_scalar_ && !in_string_ && depth_ == 0;
  return ended ? EndValue() : State::kGoesOn;
}

CallScanner::State CallScanner::EndValue() {
  where_ = Where::kAfterValue;
  if (key_ == "name") {
    const auto name = Unquoted(value_);
    if (!name || name->empty()) return State::kBad;
    name_ = name;
    return State::kGoesOn;
  }
  if (!IsArguments()) return State::kGoesOn;
  has_arguments_ = true;
  if (is_scalar_) {
    arguments_ = "{}";
    return value_ == "null" ? State::kGoesOn : State::kBad;
  }
  if (is_string_) {
    const auto text = Unquoted(value_);
    if (!text) return State::kBad;
    arguments_ = *text;
  }
  return State::kGoesOn;
}

CallScanner::State CallScanner::AfterValue(char c) {
  if (c == ',') {
    where_ = Where::kKey;
    return State::kGoesOn;
  }
  if (c != '}' || !name_) return State::kBad;
  if (!std::exchange(has_arguments_, true)) arguments_ = "{}";
  where_ = Where::kDone;
  return State::kDone;
}

}  // namespace specfabric::gateway
