#ifndef SPECFABRIC_SCHEDULER_POLICY_LOADS_H_
#define SPECFABRIC_SCHEDULER_POLICY_LOADS_H_

// What is learned apart for each load: for each power of two of sequences.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>

namespace specfabric::scheduler {

constexpr int kLoads = 12;

// Of so many sequences: below 2, 2 and 3, 4 to 7 and so on.
constexpr int LoadOf(int32_t sequences) {
  const auto width = std::bit_width(static_cast<uint32_t>(std::max(1, sequences)));
  return std::min(static_cast<int>(width) - 1, kLoads - 1);
}

// Of a load that tells nothing yet, what is known of another is taken: that for which known(load)
// holds and which is the nearest to `load` of `loads`, the lower of two; none if there is none.
template <typename Known>
std::optional<int> NearestLoad(int load, int loads, const Known& known) {
  for (int away = 0; away < loads; ++away) {
    for (const int near : {load - away, load + away}) {
      if (near >= 0 && near < loads && known(near)) return near;
    }
  }
  return std::nullopt;
}

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_LOADS_H_
