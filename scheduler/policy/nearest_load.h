#ifndef SPECFABRIC_SCHEDULER_POLICY_NEAREST_LOAD_H_
#define SPECFABRIC_SCHEDULER_POLICY_NEAREST_LOAD_H_

#include <optional>

namespace specfabric::scheduler {

// What is learned apart for each load is, of one that tells nothing yet, taken from another: that
// for which known(load) holds and which is the nearest to `load` of `loads`, the lower of two; none
// if there is none.
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

#endif  // SPECFABRIC_SCHEDULER_POLICY_NEAREST_LOAD_H_
