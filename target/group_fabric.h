#ifndef SPECFABRIC_TARGET_GROUP_FABRIC_H_
#define SPECFABRIC_TARGET_GROUP_FABRIC_H_

// Fabric options of the link between the processes of one group.

#include <utility>

#include "transport/fabric.h"

namespace specfabric::target {

inline transport::FabricOptions GroupFabric(transport::FabricOptions fabric) {
  // One frame carries the parts of all ranks in a collective: a step's rows times the hidden size,
  // or whole rows of logits.
  fabric.max_frame_bytes = 1u << 30;
  return fabric;
}

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_GROUP_FABRIC_H_
