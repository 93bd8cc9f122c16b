#ifndef SPECFABRIC_MODEL_CHECKPOINT_NESTED_FIELDS_H_
#define SPECFABRIC_MODEL_CHECKPOINT_NESTED_FIELDS_H_

// The fields of a drafter's config.json, which may be in an object of their own. For the sources
// that read drafters' configurations.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "model/checkpoint/json_fields.h"
#include "nlohmann/json.hpp"

namespace specfabric::model {

// In what the library `speculators` has written, whatever the drafter.
inline constexpr char kSpeculatorsType[] = "speculators_model_type";
inline constexpr char kEagleConfig[] = "eagle_config";
inline constexpr char kDFlashConfig[] = "dflash_config";

// config.json with one of its objects, where some exports have some of the fields.
class NestedFields {
 public:
  // nested: the object's name.
  NestedFields(const nlohmann::json& json, const std::string& where, const char* nested)
      : top_(json, where), nested_(Object(json, nested), absl::StrCat(where, ": ", nested)) {
    const nlohmann::json* object = top_.Find(nested);
    if (object != nullptr && !object->is_object()) top_.Fail(nested, "is not an object");
  }

  Fields& top() { return top_; }
  Fields& nested() { return nested_; }
  // Where the field is; the top if it is nowhere.
  Fields& With(const char* name) { return nested_.Find(name) == nullptr ? top_ : nested_; }
  bool FlagOr(const char* name, bool otherwise) { return With(name).FlagOr(name, otherwise); }
  absl::Status status() const { return top_.status().ok() ? nested_.status() : top_.status(); }

 private:
  static const nlohmann::json& Object(const nlohmann::json& json, const char* nested) {
    static const nlohmann::json* const kNone = new nlohmann::json(nlohmann::json::object());
    const auto it = json.find(nested);
    return it == json.end() || !it->is_object() ? *kNone : *it;
  }

  Fields top_, nested_;
};

// Ids of the target's layers are numbers of boundaries, or of the layers after which they lie, and
// nothing but the field's name says which.
enum class IdsAre : uint8_t { kBoundaries, kLayers, kLayersIfTheFirstIsOne };

// As boundaries, in the order given; empty if the field is absent.
std::vector<int32_t> ReadBoundaries(Fields& fields, const char* name, IdsAre ids_are);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_CHECKPOINT_NESTED_FIELDS_H_
