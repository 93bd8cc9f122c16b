#ifndef SPECFABRIC_TESTS_TRANSPORT_PROCESS_INFO_H_
#define SPECFABRIC_TESTS_TRANSPORT_PROCESS_INFO_H_

#include <sys/types.h>

#include <cstddef>

#include "tests/base/sanitizers.h"

namespace specfabric::transport {

// Under sanitizers, which keep freed memory and shadow memory, resident memory is not meaningful.
#if SPECFABRIC_SANITIZED
constexpr bool kMemoryIsMeasurable = false;
#else
constexpr bool kMemoryIsMeasurable = true;
#endif

// A process's resources, as the kernel counts them.
struct ProcessInfo {
  size_t resident_bytes = 0;
  size_t file_descriptors = 0;
  size_t threads = 0;
  size_t mappings = 0;         // of memory, those of shared segments among them
  size_t shared_mappings = 0;  // of /dev/shm, System V and deleted files: UCX's shared memory

  static ProcessInfo Of(pid_t pid);
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TESTS_TRANSPORT_PROCESS_INFO_H_
