#ifndef SPECFABRIC_APP_PERFTEST_PATTERN_H_
#define SPECFABRIC_APP_PERFTEST_PATTERN_H_

// What goes over the wire to see that it comes out as it went in: bytes that follow from a seed, in
// the memory that is measured.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transport/fabric.h"

namespace specfabric::perftest {

std::vector<uint8_t> Pattern(uint32_t bytes, uint8_t seed);
// OK if that is what came; Internal says how much came, and where it differs first.
absl::Status CheckPattern(absl::Span<const uint8_t> came, uint32_t bytes, uint8_t seed);

// Into a slot, of whatever memory: a GPU's has to be the one whose context the thread has.
absl::Status WriteSlot(const transport::Lease& slot, absl::Span<const uint8_t> bytes);
// Out of a tensor, likewise.
absl::StatusOr<std::vector<uint8_t>> ReadTensor(const transport::Tensor& tensor);

}  // namespace specfabric::perftest

#endif  // SPECFABRIC_APP_PERFTEST_PATTERN_H_
