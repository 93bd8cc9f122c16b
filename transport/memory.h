#ifndef SPECFABRIC_TRANSPORT_MEMORY_H_
#define SPECFABRIC_TRANSPORT_MEMORY_H_

// Slabs: memory registered with UCX. Private to transport/.

#include <ucp/api/ucp.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/slot_pool.h"

namespace specfabric::transport {

// Allocates and registers what the pool asks for. InvalidArgument: sizes out of range.
// ResourceExhausted: no memory, or it may not be registered (RLIMIT_MEMLOCK). FailedPrecondition:
// UCX has no such memory, or takes it for another kind (the CPU would read GPU memory that UCX
// takes for host memory). gpu: allocates kCuda there; its context becomes current on the calling
// thread.
absl::StatusOr<Slab> MapSlab(ucp_context_h context, const SlotPoolOptions& options, int gpu);

// Ends the registration. It frees device memory, whose GPU's context must be current on the calling
// thread; host memory stays until FreeSlab.
void UnmapSlab(ucp_context_h context, Slab& slab);
void FreeSlab(const Slab& slab);

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_MEMORY_H_
