#ifndef SPECFABRIC_MODEL_CHECKPOINT_DRAFTER_FIELDS_H_
#define SPECFABRIC_MODEL_CHECKPOINT_DRAFTER_FIELDS_H_

// Reads what a config.json says of a drafter that reads its target's hidden states. For config.cc
// alone.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/json_fields.h"
#include "nlohmann/json.hpp"

namespace specfabric::model {

// A layout in which such drafters are published.
struct DrafterLayout {
  const char* architecture;  // in config.json's `architectures`
  DrafterKind kind;
  // The architecture whose layers the drafter has, and whose fields describe them, in config.json
  // itself. Null, or where config.json says that `speculators` wrote it: they are in an object of
  // their own, whose model_type says which.
  const char* layers_of;
  bool norm_before_residual;  // what it means if config.json does not say it
  bool one_layer;             // further ones would read the embeddings again
};

// Null: no such drafter.
const DrafterLayout* FindDrafterLayout(const std::string& architecture);
std::string DrafterArchitectures();  // for messages
// Of the layers that predict several tokens in checkpoints of a target. Null: none are supported.
const DrafterLayout* FindMtpLayout(const std::string& architecture);

// The fields that describe a drafter's layers, and the architecture that has such fields.
struct LayerFields {
  const nlohmann::json* object = nullptr;  // part of config.json
  std::string where;                       // for messages
  std::string architecture;
};
// config: config.json, at the path `where`.
absl::StatusOr<LayerFields> FindLayerFields(const DrafterLayout& layout,
                                            const nlohmann::json& config, const std::string& where);

// Sets config->states, and of a block drafter config->mask_token, once everything else of `config`
// is read. json: config.json, at the path `where`.
absl::Status ReadStateDrafter(const DrafterLayout& layout, const LayerFields& layers,
                              const nlohmann::json& json, const std::string& where,
                              ModelConfig* config);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_CHECKPOINT_DRAFTER_FIELDS_H_
