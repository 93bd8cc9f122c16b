#ifndef SPECFABRIC_BASE_CHECK_H_
#define SPECFABRIC_BASE_CHECK_H_

// For what only a programming error can make false: says where, and ends the process, in every
// build. What input or another process can cause is an absl::Status instead.

#include <cstdio>
#include <cstdlib>

namespace specfabric::base {

[[noreturn]] inline void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace specfabric::base

#define SPECFABRIC_CHECK(condition) \
  ((condition) ? void() : ::specfabric::base::CheckFailed(#condition, __FILE__, __LINE__))

#endif  // SPECFABRIC_BASE_CHECK_H_
