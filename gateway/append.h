#ifndef SPECFABRIC_GATEWAY_APPEND_H_
#define SPECFABRIC_GATEWAY_APPEND_H_

#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace specfabric::gateway {

// Moves all of `from` to the end of `to`.
template <typename T>
void AppendTo(std::vector<T>& to, std::vector<T>&& from) {
  if (to.empty()) {
    to = std::move(from);
  } else {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  }
}

inline void AppendTo(std::string& to, std::string&& from) {
  if (to.empty()) {
    to = std::move(from);
  } else {
    to += from;
  }
}

}  // namespace specfabric::gateway

#endif  // SPECFABRIC_GATEWAY_APPEND_H_
