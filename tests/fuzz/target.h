#ifndef SPECFABRIC_TESTS_FUZZ_TARGET_H_
#define SPECFABRIC_TESTS_FUZZ_TARGET_H_

// What every fuzz target defines, and what drives it: libFuzzer (under clang) or mutation_main.cc
// (under any compiler, as an ordinary test). A target ends the process by SPECFABRIC_CHECK when a
// decoder breaks its word, a sanitizer does when it breaks C++'s.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// One input from outside, of any size.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace specfabric::fuzz {

using Bytes = std::vector<uint8_t>;

// Valid inputs to start from, of every kind that the decoder takes.
std::vector<Bytes> Seeds();

inline Bytes ToBytes(const std::string& text) { return {text.begin(), text.end()}; }

// Keeps what is read from being optimised away.
template <typename T>
void Use(const T& value) {
  asm volatile("" : : "m"(value) : "memory");
}

}  // namespace specfabric::fuzz

#endif  // SPECFABRIC_TESTS_FUZZ_TARGET_H_
