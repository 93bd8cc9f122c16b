#ifndef SPECFABRIC_SCHEDULER_POLICY_REQUEST_CHECK_H_
#define SPECFABRIC_SCHEDULER_POLICY_REQUEST_CHECK_H_

// Which requests a target group takes, whatever its load. Pure; called by Admission.

#include "absl/status/status.h"
#include "scheduler/scheduler.h"

namespace specfabric::scheduler {

// InvalidArgument: empty prompt, ids or priority out of range, longer than the context, nothing
// left to generate. The message says what was given and what is allowed.
absl::Status CheckRequest(const SequenceRequest& request, const SchedulerOptions& options);

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_REQUEST_CHECK_H_
