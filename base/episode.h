#ifndef SPECFABRIC_BASE_EPISODE_H_
#define SPECFABRIC_BASE_EPISODE_H_

// Failures that follow each other closely are one episode, which is worth one line in the log.

#include <optional>

#include "base/clock.h"

namespace specfabric::base {

class Episode {
 public:
  // An episode ends when nothing has failed for so long.
  static constexpr Nanos kQuiet = 10 * kSecond;

  // Counts a failure; true for the first of an episode.
  bool Begins(Nanos now) {
    const bool begins = !last_ || now - *last_ > kQuiet;
    last_ = now;
    return begins;
  }

 private:
  std::optional<Nanos> last_;
};

}  // namespace specfabric::base

#endif  // SPECFABRIC_BASE_EPISODE_H_
