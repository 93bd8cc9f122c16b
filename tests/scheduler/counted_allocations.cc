#include "tests/scheduler/counted_allocations.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
int64_t allocations = 0;
}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace specfabric {

int64_t CountedAllocations() { return allocations; }

}  // namespace specfabric
