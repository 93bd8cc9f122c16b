#ifndef SPECFABRIC_BASE_CUDA_EVENT_H_
#define SPECFABRIC_BASE_CUDA_EVENT_H_

// A place in a stream's work, which others wait for or that is timed.

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

struct CUevent_st;

namespace specfabric::base::cuda {

struct DestroyEvent {
  void operator()(CUevent_st* event) const;
};
using Event = std::unique_ptr<CUevent_st, DestroyEvent>;

enum class EventUse : uint8_t { kOrder, kTime };

// Of the current device. Internal: the device's own error.
absl::StatusOr<Event> MakeEvent(EventUse use);

}  // namespace specfabric::base::cuda

#endif  // SPECFABRIC_BASE_CUDA_EVENT_H_
