#include "model/checkpoint/rope_config.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace specfabric::model {
namespace {

using Json = nlohmann::json;

constexpr char kRopeTypes[] = "default, linear, llama3, yarn";

// transformers 5 may store one object for each type of layer. The four families rotate every layer
// alike, so that objects that differ are another model's.
const Json* SharedObject(Fields& fields, const char* name, const Json& object) {
  const Json* shared = nullptr;
  for (const char* type : {"full_attention", "sliding_attention"}) {
    const auto nested = object.find(type);
    if (nested == object.end() || !nested->is_object()) continue;
    if (shared != nullptr && *shared != *nested) {
      fields.Unsupported(name, "one object for each type of layer", "the same for all layers");
    }
    shared = &*nested;
  }
  return shared == nullptr ? &object : shared;
}

// The object that holds rotary settings: `rope_scaling` of older configs, `rope_parameters` of
// transformers 5.
const Json* RopeObject(Fields& fields) {
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const Json* value = fields.Find(name);
    if (value == nullptr) continue;
    if (!value->is_object()) {
      fields.Fail(name, "is not an object");
      return nullptr;
    }
    if (!value->empty()) return SharedObject(fields, name, *value);
  }
  return nullptr;
}

RopeKind ReadKind(Fields& fields) {
  const std::string type = fields.TextOr("rope_type", fields.TextOr("type", "default"));
  if (type == "linear") return RopeKind::kLinear;
  if (type == "llama3") return RopeKind::kLlama3;
  if (type == "yarn") return RopeKind::kYarn;
  if (type != "default") fields.Unsupported("rope_type", type, kRopeTypes);
  return RopeKind::kDefault;
}

void ReadFactor(Fields& fields, int32_t positions, RopeConfig* rope) {
  if (fields.Find("factor") != nullptr) {
    rope->factor = fields.PositiveOr("factor", 1.0);
  } else if (rope->kind == RopeKind::kYarn) {
    rope->factor = static_cast<double>(positions) / rope->original_context;
  } else {
    fields.Fail("factor",
                absl::StrCat("is missing; rope_type '",
                             rope->kind == RopeKind::kLinear ? "linear" : "llama3", "' needs it"));
  }
}

void ReadLlama3(Fields& fields, RopeConfig* rope) {
  rope->low_freq_factor = fields.PositiveOr("low_freq_factor", rope->low_freq_factor);
  rope->high_freq_factor = fields.PositiveOr("high_freq_factor", rope->high_freq_factor);
  if (rope->high_freq_factor <= rope->low_freq_factor) {
    fields.Fail("high_freq_factor",
                absl::StrCat("is ", rope->high_freq_factor, "; allowed: above low_freq_factor, ",
                             rope->low_freq_factor));
  }
}

void ReadYarn(Fields& fields, RopeConfig* rope) {
  rope->beta_fast = fields.PositiveOr("beta_fast", rope->beta_fast);
  rope->beta_slow = fields.PositiveOr("beta_slow", rope->beta_slow);
  rope->attention_factor = fields.PositiveOr("attention_factor", 0.0);
  rope->mscale = fields.PositiveOr("mscale", 0.0);
  rope->mscale_all_dim = fields.PositiveOr("mscale_all_dim", 0.0);
  rope->truncate = fields.FlagOr("truncate", true);
  if (rope->theta <= 1.0) {
    fields.Fail("rope_theta", absl::StrCat("is ", rope->theta, "; allowed for yarn: above 1"));
  }
}

}  // namespace

absl::StatusOr<RopeConfig> ReadRope(Fields& top, int32_t positions, const std::string& where) {
  RopeConfig rope;
  rope.theta = top.PositiveOr("rope_theta", 10000.0);
  double partial = top.PositiveOr("partial_rotary_factor", 1.0);
  const Json* object = RopeObject(top);
  if (!top.status().ok()) return top.status();
  const Json empty = Json::object();
  Fields fields(object == nullptr ? empty : *object, absl::StrCat(where, ": rope parameters"));

  rope.theta = fields.PositiveOr("rope_theta", rope.theta);
  partial = fields.PositiveOr("partial_rotary_factor", partial);
  if (partial != 1.0) fields.Unsupported("partial_rotary_factor", absl::StrCat(partial), "1");
  rope.kind = ReadKind(fields);
  if (!fields.status().ok()) return fields.status();
  if (rope.kind == RopeKind::kDefault) return rope;

  if (rope.kind == RopeKind::kLlama3 || rope.kind == RopeKind::kYarn) {
    // One beside the object wins, as it does in transformers.
    rope.original_context =
        top.CountOr("original_max_position_embeddings",
                    fields.CountOr("original_max_position_embeddings", positions));
  }
  ReadFactor(fields, positions, &rope);
  if (rope.kind == RopeKind::kLlama3) ReadLlama3(fields, &rope);
  if (rope.kind == RopeKind::kYarn) ReadYarn(fields, &rope);
  if (!top.status().ok()) return top.status();
  if (!fields.status().ok()) return fields.status();
  return rope;
}

// Those who add YaRN to a checkpoint, as Qwen's model cards say to, and those who add linear
// scaling, as transformers' documentation said to, leave max_position_embeddings as it was. With
// llama3 it is the extended one.
absl::StatusOr<int32_t> ContextOf(const RopeConfig& rope, int32_t positions,
                                  const std::string& where) {
  if (rope.kind != RopeKind::kLinear && rope.kind != RopeKind::kYarn) return positions;
  const int32_t before = rope.kind == RopeKind::kYarn ? rope.original_context : positions;
  const double extended = rope.factor * before;
  if (extended > kMaxCount) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": rope parameters: factor ", rope.factor,
                                                   " times ", before, " positions is above ",
                                                   kMaxCount));
  }
  return std::max(positions, static_cast<int32_t>(extended));
}

}  // namespace specfabric::model
