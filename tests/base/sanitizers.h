#ifndef SPECFABRIC_TESTS_BASE_SANITIZERS_H_
#define SPECFABRIC_TESTS_BASE_SANITIZERS_H_

// Which sanitizer this is compiled with. GCC says so by macros, Clang by features.

#if defined(__has_feature)
#define SPECFABRIC_HAS_FEATURE(feature) __has_feature(feature)
#else
#define SPECFABRIC_HAS_FEATURE(feature) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || SPECFABRIC_HAS_FEATURE(address_sanitizer)
#define SPECFABRIC_ADDRESS_SANITIZER 1
#else
#define SPECFABRIC_ADDRESS_SANITIZER 0
#endif

#if defined(__SANITIZE_THREAD__) || SPECFABRIC_HAS_FEATURE(thread_sanitizer)
#define SPECFABRIC_THREAD_SANITIZER 1
#else
#define SPECFABRIC_THREAD_SANITIZER 0
#endif

#define SPECFABRIC_SANITIZED (SPECFABRIC_ADDRESS_SANITIZER || SPECFABRIC_THREAD_SANITIZER)

#endif  // SPECFABRIC_TESTS_BASE_SANITIZERS_H_
