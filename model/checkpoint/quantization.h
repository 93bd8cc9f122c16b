#ifndef SPECFABRIC_MODEL_CHECKPOINT_QUANTIZATION_H_
#define SPECFABRIC_MODEL_CHECKPOINT_QUANTIZATION_H_

// Recognises checkpoints whose weights are quantized. None is served: without its scales a
// quantized weight is another weight, even where its tensor could be read as one.

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace specfabric::model {

// config: the content of <model_dir>/config.json. Unimplemented: it, or a file beside it that
// quantization tools write, says that the weights are quantized; the message names the method.
absl::Status CheckNotQuantized(const nlohmann::json& config, const std::string& model_dir);

// Whether a tensor of this name holds scales, zero points or packed weights.
bool IsQuantizationTensor(std::string_view name);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_CHECKPOINT_QUANTIZATION_H_
