#ifndef SPECFABRIC_MODEL_CHECKPOINT_BLOCK_DRAFTER_FIELDS_H_
#define SPECFABRIC_MODEL_CHECKPOINT_BLOCK_DRAFTER_FIELDS_H_

// What a config.json says of a block drafter. For drafter_fields.cc alone.

#include "model/checkpoint/config.h"
#include "model/checkpoint/nested_fields.h"

namespace specfabric::model {

// Sets states->block and states->layers, and config->mask_token. What is wrong is in
// fields.status(). states: kind and windows are set.
void ReadBlockDrafter(NestedFields& fields, ModelConfig* config, StateDrafter* states);

}  // namespace specfabric::model

#endif  // SPECFABRIC_MODEL_CHECKPOINT_BLOCK_DRAFTER_FIELDS_H_
