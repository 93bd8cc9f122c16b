#include "base/cuda/event.h"

#include "base/cuda/error.h"

namespace specfabric::base::cuda {

void DestroyEvent::operator()(CUevent_st* event) const { cudaEventDestroy(event); }

absl::StatusOr<Event> MakeEvent(EventUse use) {
  const unsigned flags = use == EventUse::kTime ? cudaEventDefault : cudaEventDisableTiming;
  cudaEvent_t event = nullptr;
  if (absl::Status made = ToStatus(cudaEventCreateWithFlags(&event, flags), "an event");
      !made.ok()) {
    return made;
  }
  return Event(event);
}

}  // namespace specfabric::base::cuda
