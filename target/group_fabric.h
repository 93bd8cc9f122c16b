#ifndef SPECFABRIC_TARGET_GROUP_FABRIC_H_
#define SPECFABRIC_TARGET_GROUP_FABRIC_H_

// What the link inside a group needs of its fabric, besides what the process's own has.

#include <utility>

#include "transport/fabric.h"

namespace specfabric::target {

inline transport::FabricOptions GroupFabric(transport::FabricOptions fabric) {
  // The parts of all ranks in one collective: a step's rows times the hidden size, or whole rows of
  // logits.
  fabric.max_frame_bytes = 1u << 30;
  return fabric;
}

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_GROUP_FABRIC_H_
