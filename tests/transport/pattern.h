#ifndef SPECFABRIC_TESTS_TRANSPORT_PATTERN_H_
#define SPECFABRIC_TESTS_TRANSPORT_PATTERN_H_

// Contents of test tensors: every 8 bytes differ from those of another place or another tag.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"

namespace specfabric::transport {

inline uint64_t PatternWord(uint64_t tag, size_t index) {
  return (tag + 1) * 0x9e3779b97f4a7c15 ^ (index + 1) * 0xd1342543de82ef95;
}

inline void FillPattern(uint8_t* data, size_t bytes, uint64_t tag) {
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t word = PatternWord(tag, i);
    std::memcpy(data + i, &word, std::min<size_t>(8, bytes - i));
  }
}

// How many bytes are not as FillPattern left them.
inline size_t CountWrong(absl::Span<const uint8_t> bytes, uint64_t tag) {
  size_t wrong = 0;
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t word = PatternWord(tag, i);
    const size_t count = std::min<size_t>(8, bytes.size() - i);
    if (std::memcmp(bytes.data() + i, &word, count) == 0) continue;
    const uint8_t* expected = reinterpret_cast<const uint8_t*>(&word);
    for (size_t k = 0; k < count; ++k) wrong += bytes[i + k] != expected[k];
  }
  return wrong;
}

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TESTS_TRANSPORT_PATTERN_H_
