#ifndef SPECFABRIC_GATEWAY_TEXT_MARKS_H_
#define SPECFABRIC_GATEWAY_TEXT_MARKS_H_

// Marks in a text that arrives in pieces.

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace specfabric::gateway {

// White space, as in JSON.
inline constexpr std::string_view kSpaces = " \n\r\t";
inline bool IsSpace(char c) { return kSpaces.find(c) != std::string_view::npos; }

// Characters of `text` up to white space at its end.
inline size_t SizeWithoutEnd(std::string_view text) {
  const size_t last = text.find_last_not_of(kSpaces);
  return last == std::string_view::npos ? 0 : last + 1;
}

// Adds `text` to `told`, but for white space at its end, which waits in `held` for more text.
// Returns whether anything but white space was added.
inline bool TellText(std::string_view text, std::string* held, std::string* told) {
  const size_t size = SizeWithoutEnd(text);
  if (size > 0) {
    *told += *held;
    held->clear();
    *told += text.substr(0, size);
  }
  *held += text.substr(size);
  return size > 0;
}

// Characters at the end of `text` that begin `mark`, which is not empty and not in the text.
inline size_t BegunAtEnd(std::string_view text, std::string_view mark) {
  for (size_t size = std::min(text.size(), mark.size() - 1); size > 0; --size) {
    if (mark.starts_with(text.substr(text.size() - size))) return size;
  }
  return 0;
}

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_TEXT_MARKS_H_
