#include "model/checkpoint/json_fields.h"

#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <unordered_set>
#include <vector>

#include "absl/strings/str_cat.h"

namespace specfabric::model {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostShown = 60;  // characters of a value in a message

// Ends the parse at the first key that occurs twice in an object. A pass of its own, since the
// parser's callbacks cost it a scan of the surrounding object at the end of every object in it.
class UniqueKeys : public nlohmann::json_sax<Json> {
 public:
  const std::optional<std::string>& twice() const { return twice_; }

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_array(size_t /*elements*/) override { return true; }
  bool end_array() override { return true; }
  bool start_object(size_t /*elements*/) override {
    keys_.emplace_back();
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    return true;
  }
  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    twice_ = name;
    return false;
  }
  bool parse_error(size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return false;
  }

 private:
  std::vector<std::unordered_set<std::string>> keys_;  // of every object that is still open
  std::optional<std::string> twice_;
};

}  // namespace

std::optional<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

absl::StatusOr<Json> ReadJsonObject(const std::string& path) {
  const std::optional<std::string> text = ReadText(path);
  if (!text) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  Json json = Json::parse(*text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object"));
  }
  return json;
}

absl::StatusOr<Json> ParseUniqueKeys(std::string_view text) {
  UniqueKeys keys;
  const bool parsed = Json::sax_parse(text.begin(), text.end(), &keys);
  if (!parsed && keys.twice()) {
    return absl::InvalidArgumentError(absl::StrCat("key ", Shown(*keys.twice()), " occurs twice"));
  }
  Json json = parsed ? Json::parse(text.begin(), text.end(), /*cb=*/nullptr,
                                   /*allow_exceptions=*/false)
                     : Json();
  if (!json.is_object()) return absl::InvalidArgumentError("not a JSON object");
  return json;
}

std::string Shown(const Json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > kMostShown) text = absl::StrCat(text.substr(0, kMostShown), "...");
  return text;
}

const Json* Fields::Find(const char* name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

int32_t Fields::Count(const char* name) {
  if (Find(name) == nullptr) {
    Fail(name, "is missing");
    return 0;
  }
  return CountOr(name, 0);
}

int32_t Fields::CountOr(const char* name, int32_t otherwise, int32_t least) {
  const Json* value = Find(name);
  if (value == nullptr) return otherwise;
  const double number = value->is_number() ? value->get<double>() : -1.0;
  if (!value->is_number_integer() || number < least || number > kMaxCount) {
    Fail(name, absl::StrCat("is ", Shown(*value), "; allowed: an integer from ", least, " to ",
                            kMaxCount));
    return otherwise;
  }
  return static_cast<int32_t>(number);
}

double Fields::PositiveOr(const char* name, double otherwise) {
  const Json* value = Find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_number() || !(value->get<double>() > 0.0)) {
    Fail(name, absl::StrCat("is ", Shown(*value), "; allowed: a number above 0"));
    return otherwise;
  }
  return value->get<double>();
}

float Fields::PositiveFloatOr(const char* name, float otherwise) {
  constexpr double kLeast = std::numeric_limits<float>::min();
  constexpr double kMost = std::numeric_limits<float>::max();
  const double value = PositiveOr(name, otherwise);
  if (value < kLeast || value > kMost) {
    Fail(name, absl::StrCat("is ", value, "; allowed: a number from ", kLeast, " to ", kMost));
    return otherwise;
  }
  return static_cast<float>(value);
}

bool Fields::FlagOr(const char* name, bool otherwise) {
  const Json* value = Find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) {
    Fail(name, absl::StrCat("is ", Shown(*value), "; allowed: true, false"));
    return otherwise;
  }
  return value->get<bool>();
}

std::string Fields::TextOr(const char* name, const std::string& otherwise) {
  const Json* value = Find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) {
    Fail(name, absl::StrCat("is ", Shown(*value), "; allowed: a string"));
    return otherwise;
  }
  return value->get<std::string>();
}

void Fields::Fail(const char* name, const std::string& what) {
  if (status_.ok()) {
    status_ = absl::InvalidArgumentError(absl::StrCat(where_, ": ", name, " ", what));
  }
}

void Fields::Unsupported(const char* name, const std::string& given, const std::string& allowed) {
  if (status_.ok()) {
    status_ = absl::UnimplementedError(
        absl::StrCat(where_, ": ", name, " '", given, "' is not supported; allowed: ", allowed));
  }
}

}  // namespace specfabric::model
