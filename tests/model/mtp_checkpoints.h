#ifndef SPECFABRIC_TESTS_MODEL_MTP_CHECKPOINTS_H_
#define SPECFABRIC_TESTS_MODEL_MTP_CHECKPOINTS_H_

// Small random MTP drafters in both layouts that are read.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/checkpoint/config.h"
#include "tests/model/checkpoint_writer.h"

namespace specfabric::model {

// OddConfig as a MiMo, whose checkpoint has an MTP layer too.
ModelConfig OddMimoConfig();

struct MimoOptions {
  int layers = 1;  // those for further tokens that config.json has; the first of them is stored
  std::function<void(std::vector<NamedTensor>*)> change = {};  // what is stored
};
// The checkpoint of a MiMo, which is also that of its drafter.
void WriteMimo(const std::string& dir, const ModelConfig& target, uint32_t seed,
               const MimoOptions& options = {});

// speculators' export of a drafter for OddConfig (WriteCheckpoint): a Qwen3's layer.
ModelConfig OddMtpConfig();

}  // namespace specfabric::model

#endif  // SPECFABRIC_TESTS_MODEL_MTP_CHECKPOINTS_H_
