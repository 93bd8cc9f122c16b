#ifndef SPECFABRIC_MODEL_CHECKPOINT_CONFIG_H_
#define SPECFABRIC_MODEL_CHECKPOINT_CONFIG_H_

// A Hugging Face config.json, as far as a dense decoder-only transformer needs it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_type.h"
#include "base/types.h"
#include "model/checkpoint/drafter_config.h"

namespace specfabric::model {

using base::DataType;
absl::StatusOr<DataType> ParseDataType(const std::string& name);  // "float32", "bfloat16"

enum class RopeKind : uint8_t { kDefault, kLinear, kLlama3, kYarn };

// Rotary embedding as `rope_scaling` (older configs) or `rope_parameters` (transformers 5) say it.
struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;  // llama3
  int32_t original_context = 0;   // llama3, yarn
  double beta_fast = 32.0;        // yarn
  double beta_slow = 1.0;         // yarn
  double attention_factor = 0.0;  // yarn; 0: computed from the factor (and mscale)
  double mscale = 0.0;            // yarn
  double mscale_all_dim = 0.0;    // yarn
  bool truncate = true;           // yarn
};

struct ModelConfig {
  std::string architecture;  // e.g. "LlamaForCausalLM"
  int32_t vocabulary = 0;
  int32_t hidden = 0;
  int32_t intermediate = 0;
  int32_t layers = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t context = 0;  // positions: max_position_embeddings, or what scaled rope extends it to
  float rms_epsilon = 1e-6f;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;  // attention's o_proj
  bool mlp_bias = false;
  bool qk_norm = false;
  int32_t sliding_window = 0;  // of the layers that have one; 0: none. See ServedContext.
  RopeConfig rope;
  DataType checkpoint_type = DataType::kFloat32;
  std::vector<base::TokenId> eos_ids;
  // Of a parallel draft model (PARD, 2504.18583), which predicts several tokens in one pass: what
  // stands for those that are not known yet. kNoToken: of other models.
  base::TokenId mask_token = base::kNoToken;
  // Of a drafter that reads its target's hidden states. Its `vocabulary` is the target's.
  std::optional<StateDrafter> states;
};

// Reads <model_dir>/config.json. NotFound: no such folder or file. InvalidArgument: not JSON, or a
// field is missing or senseless. Unimplemented: an architecture, activation or rope type that is
// not among those supported (the message names the ones that are), or quantized weights.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model_dir);

// The same of a draft's model, whose target's folder is `target_dir` (may be empty). It differs for
// the checkpoint of a target with layers that predict several tokens (MTP): where the target's
// config.json is the same, they are the draft's model, with `states`. Errors are also those of the
// target's file; Unimplemented: such layers of an architecture whose layers cannot be run.
absl::StatusOr<ModelConfig> LoadDraftConfig(const std::string& model_dir,
                                            const std::string& target_dir);

// Makes `drafter`, a checkpoint whose `states` are set, fit its target: fills in the layers if its
// config.json names none. InvalidArgument: they do not fit (layers, hidden size or vocabulary); the
// message says what is given and what is allowed.
absl::Status ResolveDrafter(const ModelConfig& target, ModelConfig* drafter);

// The longest sequence to serve: config.context, or `most` if that is less and not 0.
// Unimplemented: some layer's window is shorter than that, so that it would matter; the message
// says which context can be served.
absl::StatusOr<int32_t> ServedContext(const ModelConfig& config, int32_t most);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_CHECKPOINT_CONFIG_H_
