#ifndef SPECFABRIC_MODEL_CHECKPOINT_ROPE_CONFIG_H_
#define SPECFABRIC_MODEL_CHECKPOINT_ROPE_CONFIG_H_

// Reads the rotary settings of a config.json. For config.cc alone.

#include <string>

#include "absl/status/statusor.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/json_fields.h"

namespace specfabric::model {

// top: config.json's fields. positions: its max_position_embeddings. where: its path.
absl::StatusOr<RopeConfig> ReadRope(Fields& top, int32_t positions, const std::string& where);

// The positions that a model with `rope` is meant for. InvalidArgument: too many to count.
absl::StatusOr<int32_t> ContextOf(const RopeConfig& rope, int32_t positions,
                                  const std::string& where);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_CHECKPOINT_ROPE_CONFIG_H_
