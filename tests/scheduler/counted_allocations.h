#ifndef SPECFABRIC_TESTS_SCHEDULER_COUNTED_ALLOCATIONS_H_
#define SPECFABRIC_TESTS_SCHEDULER_COUNTED_ALLOCATIONS_H_

// Counts the calls of operator new, which is replaced where this is linked. One thread.

#include <cstdint>

namespace specfabric {

int64_t CountedAllocations();

}  // namespace specfabric

#endif  // SPECFABRIC_TESTS_SCHEDULER_COUNTED_ALLOCATIONS_H_
