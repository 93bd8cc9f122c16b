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
// UCX has no such memory, or takes it for another kind (GPU memory that came out as host memory
// would be read by the CPU).
// gpu: whose memory kCuda is; its context becomes the calling thread's.
absl::StatusOr<Slab> MapSlab(ucp_context_h context, const SlotPoolOptions& options, int gpu);

// Ends the registration. Device memory goes with it, by the context of its GPU, which has to be the
// calling thread's; host memory stays until FreeSlab.
void UnmapSlab(ucp_context_h context, Slab& slab);
void FreeSlab(const Slab& slab);

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_MEMORY_H_
