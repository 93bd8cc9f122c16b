#ifndef SPECFABRIC_LINK_DISPATCH_H_
#define SPECFABRIC_LINK_DISPATCH_H_

// Decodes a frame to the message that a service receives. Private to link/.

#include "absl/status/statusor.h"
#include "link/link.h"
#include "transport/fabric.h"

namespace specfabric::link {

// InvalidArgument: the type is not a service's message, or the payload does not decode.
absl::StatusOr<Message> DecodeMessage(const transport::Frame& frame);

}  // namespace specfabric::link

#endif  // SPECFABRIC_LINK_DISPATCH_H_
