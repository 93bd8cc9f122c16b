#ifndef SPECFABRIC_GATEWAY_TEXT_MARKS_H_
#define SPECFABRIC_GATEWAY_TEXT_MARKS_H_

// Marks in a text that arrives in pieces.

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace specfabric::gateway {

// White space, as in JSON.
inline constexpr std::string_view kSpaces = " \n\r\t";
inline bool IsSpace(char c) { return kSpaces.find(c) != std::string_view::npos; }

// Characters at the end of `text` that begin `mark`, which is not empty and not in the text.
inline size_t BegunAtEnd(std::string_view text, std::string_view mark) {
  for (size_t size = std::min(text.size(), mark.size() - 1); size > 0; --size) {
    if (mark.starts_with(text.substr(text.size() - size))) return size;
  }
  return 0;
}

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_TEXT_MARKS_H_
