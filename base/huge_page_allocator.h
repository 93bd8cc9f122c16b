#ifndef SPECFABRIC_BASE_HUGE_PAGE_ALLOCATOR_H_
#define SPECFABRIC_BASE_HUGE_PAGE_ALLOCATOR_H_

// For containers of many MiB that are read at random places: in huge pages, where the kernel grants
// them, such a read does not also miss the TLB. Smaller ones are allocated as ever.

#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace specfabric::base {

constexpr size_t kHugePage = size_t{2} << 20;

template <typename T>
struct HugePageAllocator {
  using value_type = T;
  HugePageAllocator() = default;
  template <typename U>
  HugePageAllocator(const HugePageAllocator<U>& /*other*/) {}  // NOLINT: as allocators must

  static constexpr bool IsLarge(size_t bytes) { return bytes >= kHugePage; }

  T* allocate(size_t count) {
    const size_t bytes = count * sizeof(T);
    if (!IsLarge(bytes)) return static_cast<T*>(::operator new(bytes));
    void* data = ::operator new(bytes, std::align_val_t{kHugePage});
    madvise(data, bytes, MADV_HUGEPAGE);  // a hint: without huge pages it is only slower
    return static_cast<T*>(data);
  }
  void deallocate(T* data, size_t count) {
    if (!IsLarge(count * sizeof(T))) return ::operator delete(data);
    ::operator delete(data, std::align_val_t{kHugePage});
  }
  bool operator==(const HugePageAllocator& /*other*/) const { return true; }
};

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_HUGE_PAGE_ALLOCATOR_H_
