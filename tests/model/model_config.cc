// Prints what LoadModelConfig reads from the config.json of each folder that it is given, one JSON
// object a line; {"error": ...} where it is refused. For comparisons with another implementation.
//
//   model_config DIR...

#include <cstdio>
#include <string>

#include "absl/status/statusor.h"
#include "model/checkpoint/config.h"
#include "model/rope.h"
#include "nlohmann/json.hpp"

namespace specfabric::model {
namespace {

nlohmann::json Printed(const std::string& folder) {
  const absl::StatusOr<ModelConfig> read = LoadModelConfig(folder);
  if (!read.ok()) return {{"error", std::string(read.status().message())}};
  const ModelConfig& c = *read;
  const RopeTable rope = MakeRopeTable(c.rope, c.head_dim);
  return {{"architecture", c.architecture},
          {"vocab_size", c.vocabulary},
          {"hidden_size", c.hidden},
          {"intermediate_size", c.intermediate},
          {"num_hidden_layers", c.layers},
          {"num_attention_heads", c.heads},
          {"num_key_value_heads", c.kv_heads},
          {"head_dim", c.head_dim},
          {"context", c.context},
          {"rms_norm_eps", c.rms_epsilon},
          {"tie_word_embeddings", c.tied_embeddings},
          {"qkv_bias", c.qkv_bias},
          {"output_bias", c.output_bias},
          {"mlp_bias", c.mlp_bias},
          {"qk_norm", c.qk_norm},
          {"sliding_window", c.sliding_window},
          {"eos_ids", c.eos_ids},
          {"inverse_frequencies", rope.inverse_frequencies},
          {"attention_factor", rope.attention_factor}};
}

}  // namespace
}  // namespace specfabric::model

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::printf("%s\n", specfabric::model::Printed(argv[i]).dump().c_str());
  }
  return 0;
}
