#ifndef SPECFABRIC_MODEL_CHECKPOINT_JSON_FIELDS_H_
#define SPECFABRIC_MODEL_CHECKPOINT_JSON_FIELDS_H_

// Reads the JSON files of a checkpoint's folder. For the sources of model/ alone.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace specfabric::model {

constexpr int32_t kMaxCount = 1 << 24;  // keeps every product of two counts within 64 bits

// The bytes of a file; nothing where it cannot be opened.
std::optional<std::string> ReadText(const std::string& path);

// NotFound: no such file. InvalidArgument: not a JSON object. Where a key occurs twice the last one
// counts, as in Python.
absl::StatusOr<nlohmann::json> ReadJsonObject(const std::string& path);

// For files in which a key that occurs twice would leave open which tensor is meant:
// InvalidArgument. The message does not name the file.
absl::StatusOr<nlohmann::json> ParseUniqueKeys(std::string_view text);

// Typed fields of one JSON object. Unless a function says otherwise, null counts as absent. The
// first field that is not what it should be is remembered in status().
class Fields {
 public:
  Fields(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  const absl::Status& status() const { return status_; }
  const std::string& where() const { return where_; }

  bool IsAbsent(const char* name) const { return !object_.contains(name); }
  // Null where it is absent or null.
  const nlohmann::json* Find(const char* name) const;

  int32_t Count(const char* name);  // a missing one is an error
  int32_t CountOr(const char* name, int32_t otherwise, int32_t least = 1);
  double PositiveOr(const char* name, double otherwise);
  float PositiveFloatOr(const char* name, float otherwise);  // also finite and normal as a float
  bool FlagOr(const char* name, bool otherwise);
  std::string TextOr(const char* name, const std::string& otherwise);

  void Fail(const char* name, const std::string& what);
  void Unsupported(const char* name, const std::string& given, const std::string& allowed);

 private:
  const nlohmann::json& object_;
  std::string where_;
  absl::Status status_;
};

// A value for a message: short, on one line.
std::string Shown(const nlohmann::json& value);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_CHECKPOINT_JSON_FIELDS_H_
