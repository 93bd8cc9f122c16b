#include "tests/model/mtp_checkpoints.h"

#include <utility>

#include "model/checkpoint/checkpoint_tensors.h"
#include "nlohmann/json.hpp"

namespace specfabric::model {
namespace {

ModelConfig DrafterFor(const ModelConfig& target, const MtpDrafter& layout) {
  StateDrafter states;
  states.kind = DrafterKind::kMtp;
  states.layers = {target.layers};
  states.target_hidden = target.hidden;
  states.draft_vocabulary = target.vocabulary;
  states.norm_output = true;
  states.mtp = layout;
  ModelConfig config = target;
  config.layers = 1;
  config.states = states;
  return config;
}

}  // namespace

ModelConfig OddMimoConfig() {
  ModelConfig config = OddConfig();
  config.architecture = "MiMoForCausalLM";
  config.qkv_bias = true;
  return config;
}

void WriteMimo(const std::string& dir, const ModelConfig& target, uint32_t seed,
               const MimoOptions& options) {
  WriteCheckpoint(dir, target, seed);
  nlohmann::json json = nlohmann::json::parse(ReadFile(dir + "/config.json"));
  json["num_nextn_predict_layers"] = options.layers;
  WriteFile(dir + "/config.json", json.dump());
  std::vector<NamedTensor> tensors = RandomTensors(target, seed);
  const ModelConfig drafter = DrafterFor(target, {.in_target = true, .state_first = true});
  for (NamedTensor& tensor : RandomTensors(drafter, seed + 1)) {
    if (tensor.name.starts_with(kTargetMtpNames.layers)) tensors.push_back(std::move(tensor));
  }
  if (options.change) options.change(&tensors);
  WriteSafetensors(dir + "/model.safetensors", tensors, target.checkpoint_type);
}

ModelConfig OddMtpConfig() {
  ModelConfig config = DrafterFor(OddConfig(), {});
  config.architecture = "MTPDraftModel";
  config.qk_norm = true;
  return config;
}

}  // namespace specfabric::model
