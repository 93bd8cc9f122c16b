#ifndef SPECFABRIC_LINK_GPU_SLOTS_H_
#define SPECFABRIC_LINK_GPU_SLOTS_H_

#include "absl/status/status.h"
#include "transport/fabric.h"

namespace specfabric::link {

// Whether slots of tensors can lie in the memory of this process's first GPU: registers one on a
// fabric of its own, which it ends. Call before the process opens its fabric, since both may set
// UCX's variables. FailedPrecondition, in one line: UCX has no support for GPU memory, there is no
// GPU, or UCX cannot register its memory.
absl::Status CheckGpuSlots(transport::FabricOptions options);

}  // namespace specfabric::link

#endif  // SPECFABRIC_LINK_GPU_SLOTS_H_
