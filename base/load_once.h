#ifndef SPECFABRIC_BASE_LOAD_ONCE_H_
#define SPECFABRIC_BASE_LOAD_ONCE_H_

namespace specfabric::base {

// The value at a place that a peer may still write to, read exactly once: what is checked of it
// holds for what is used, since the compiler may not read the place again in between.
template <typename T>
T LoadOnce(const T& place) {
  return *static_cast<const volatile T*>(&place);
}

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_LOAD_ONCE_H_
