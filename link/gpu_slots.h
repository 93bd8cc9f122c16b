#ifndef SPECFABRIC_LINK_GPU_SLOTS_H_
#define SPECFABRIC_LINK_GPU_SLOTS_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "link/link.h"
#include "transport/fabric.h"
#include "transport/slot_pool.h"

namespace specfabric::link {

// Whether slots of tensors can lie in the memory of this process's first GPU: registers one on a
// fabric of its own, which it ends. Call before the process opens its fabric, since both may set
// UCX's variables. FailedPrecondition, in one line: UCX has no support for GPU memory, there is no
// GPU, or UCX cannot register its memory.
absl::Status CheckGpuSlots(transport::FabricOptions options);

// The same of one process, which asks for several kinds of slots: found out the first time.
class GpuSlots {
 public:
  explicit GpuSlots(const transport::FabricOptions& options) : options_(options) {}
  const absl::Status& Check() {
    if (!able_) able_ = CheckGpuSlots(options_);
    return *able_;
  }

 private:
  transport::FabricOptions options_;
  std::optional<absl::Status> able_;
};

// Adds a pool to a link; in the host's memory if slots of kCuda cannot be had, and then *gpu says
// why. Errors are Link::AddPool's.
absl::StatusOr<std::shared_ptr<transport::SlotPool>> AddPoolOrHosts(
    Link& link, uint8_t id, transport::SlotPoolOptions slots, absl::Status* gpu);

}  // namespace specfabric::link

#endif  // SPECFABRIC_LINK_GPU_SLOTS_H_
