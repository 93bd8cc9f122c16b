#ifndef SPECFABRIC_BASE_STATUS_H_
#define SPECFABRIC_BASE_STATUS_H_

#include <string>

#include "absl/status/status.h"

namespace specfabric::base {

// The message as a std::string: what log formatting takes (absl's own string_view is a type of its
// own in some builds).
inline std::string Message(const absl::Status& status) { return std::string(status.message()); }

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_STATUS_H_
