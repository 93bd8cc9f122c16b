#include "gateway/json_parse.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace specfabric::gateway {
namespace {

// nlohmann's code for a number that a double cannot hold.
constexpr int kNumberOutOfRange = 406;

using Member = std::pair<std::string, Json>;

// Of equal keys keeps the first one, with the value of the last.
void MergeEqualKeys(std::vector<Member>& members) {
  std::vector<uint32_t> order(members.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const int compared = members[a].first.compare(members[b].first);
    return compared != 0 ? compared < 0 : a < b;
  });
  std::vector<bool> dropped(members.size(), false);
  bool any = false;
  for (size_t i = 0, next = 0; i < order.size(); i = next) {
    for (next = i + 1; next < order.size() && members[order[next]].first == members[order[i]].first;
         ++next) {
      members[order[i]].second = std::move(members[order[next]].second);
      dropped[order[next]] = true;
      any = true;
    }
  }
  if (!any) return;
  size_t kept = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    if (dropped[i]) continue;
    if (kept != i) members[kept] = std::move(members[i]);
    ++kept;
  }
  members.erase(members.begin() + static_cast<ptrdiff_t>(kept), members.end());
}

// An ordered object's entries are pairs with a constant key, which a growing vector would copy,
// values included; so the object is made when its number of entries is known.
Json MakeObject(std::vector<Member>& members) {
  if (members.size() > 1) MergeEqualKeys(members);
  Json value = Json::object();
  auto& entries = value.get_ref<Json::object_t&>();
  entries.reserve(members.size());
  for (Member& member : members) {
    entries.emplace_back(std::move(member.first), std::move(member.second));
  }
  return value;
}

// Receives the SAX events of nlohmann's parser. A method that returns false ends the parsing.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, const JsonLimits& limits) : text_(text), limits_(limits) {}

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // not in JSON
  bool start_object(size_t) override { return Open(/*is_object=*/true); }
  bool start_array(size_t) override { return Open(/*is_object=*/false); }
  bool key(string_t& name) override {
    Level& level = levels_[depth_ - 1];
    if (level.members.size() == limits_.keys) {
      return Fail("the body has an object of more than " + std::to_string(limits_.keys) +
                  " keys; at most " + std::to_string(limits_.keys) + " are allowed");
    }
    level.members.emplace_back(std::move(name), nullptr);
    return true;
  }
  bool end_object() override {
    std::vector<Member>& members = levels_[--depth_].members;
    Json value = MakeObject(members);
    members.clear();
    Place(std::move(value));
    return true;
  }
  bool end_array() override {
    Json::array_t& items = levels_[--depth_].items;
    items.shrink_to_fit();
    Json value(std::exchange(items, {}));
    Place(std::move(value));
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    if (error.id == kNumberOutOfRange) {
      return Fail("the body holds a number that is out of range, before byte " +
                  std::to_string(position));
    }
    // Positions count the bytes read, including the one that caused the error.
    return Fail(position > text_.size()
                    ? std::string("the body is not valid JSON: it ends too early")
                    : "the body is not valid JSON at byte " +
                          std::to_string(position == 0 ? 0 : position - 1));
  }

  const std::optional<std::string>& error_text() const { return error_text_; }
  Json& value() { return value_; }

 private:
  // A list or object that has not ended yet.
  struct Level {
    bool is_object = false;
    std::vector<Member> members;  // the value of the last one is null until it is parsed
    Json::array_t items;
  };

  bool Fail(std::string error_text) {
    error_text_ = std::move(error_text);
    return false;
  }

  bool Count() {
    if (++values_ <= limits_.values) return true;
    return Fail("the body has more than " + std::to_string(limits_.values) + " values; at most " +
                std::to_string(limits_.values) + " are allowed");
  }

  bool Open(bool is_object) {
    if (!Count()) return false;
    if (depth_ == static_cast<size_t>(limits_.depth)) {
      return Fail("the body nests more than " + std::to_string(limits_.depth) +
                  " levels deep; at most " + std::to_string(limits_.depth) + " are allowed");
    }
    // Levels keep their memory for the next list or object at the same depth.
    if (levels_.size() == depth_) levels_.emplace_back();
    levels_[depth_++].is_object = is_object;
    return true;
  }

  template <typename T>
  bool Add(T&& value) {
    if (!Count()) return false;
    Place(Json(std::forward<T>(value)));
    return true;
  }

  void Place(Json&& value) {
    if (depth_ == 0) {
      value_ = std::move(value);
    } else if (Level& level = levels_[depth_ - 1]; level.is_object) {
      level.members.back().second = std::move(value);
    } else {
      level.items.push_back(std::move(value));
    }
  }

  const std::string_view text_;
  const JsonLimits& limits_;
  std::vector<Level> levels_;
  size_t depth_ = 0;
  size_t values_ = 0;
  Json value_;
  std::optional<std::string> error_text_;
};

}  // namespace

Parsed<Json> ParseJson(std::string_view text, const JsonLimits& limits) {
  // nlohmann's lexer ends at a NUL byte, whatever follows it; JSON never contains one.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return BadRequest("", "the body is not valid JSON at byte " + std::to_string(nul));
  }
  Builder builder(text, limits);
  if (Json::sax_parse(text.begin(), text.end(), &builder)) return std::move(builder.value());
  return BadRequest("", builder.error_text().value_or("the body is not valid JSON"));
}

}  // namespace specfabric::gateway
