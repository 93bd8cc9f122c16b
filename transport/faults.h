#ifndef SPECFABRIC_TRANSPORT_FAULTS_H_
#define SPECFABRIC_TRANSPORT_FAULTS_H_

// Fault injection, for tests: decides what happens to each frame that is about to be sent. Pure:
// the same seed and the same order of frames give the same faults.

#include <cstdint>
#include <random>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace specfabric::transport {

struct FaultOptions {
  base::Nanos simulated_rtt = 0;  // half of it delays every frame sent, so two fabrics make one
  double drop = 0;                // probabilities of each frame, in [0, 1]
  double duplicate = 0;
  double reorder = 0;     // it is held back by reorder_delay, so that later ones overtake it
  double corrupt = 0;     // one byte of the payload is changed
  double delay_part = 0;  // it is held back by `delay`
  base::Nanos delay = 0;
  base::Nanos reorder_delay = 2 * base::kMillisecond;
  uint64_t seed = 1;

  bool any() const;  // the simulated round trip included
};

// The longest `delay` that ParseFaults takes.
constexpr base::Nanos kMaxFaultDelay = 60 * base::kSecond;

// "drop=.01,duplicate=.02,reorder=.1,corrupt=.001,delay=5ms:.1,seed=7": parts in any order, each at
// most once; a delay without a part is for every frame, and needs a unit. Empty: no faults.
// InvalidArgument: one line with what was given and what is allowed.
absl::StatusOr<FaultOptions> ParseFaults(absl::string_view text);

// What happens to one frame.
struct FaultDecision {
  int copies = 1;              // 0: dropped, 2: sent twice
  base::Nanos delay = 0;       // of the first copy
  base::Nanos copy_delay = 0;  // of the second
  bool corrupt = false;  // in the first copy the byte at `corrupt_at` is xored with `corrupt_with`
  uint32_t corrupt_at = 0;   // below the payload's size
  uint8_t corrupt_with = 0;  // not 0
  bool faulty = false;       // any fault but the simulated round trip
};

// For one thread. Every frame uses up the same number of random draws, whatever its size and the
// options: raising one probability leaves the other faults where they were.
class FaultInjector {
 public:
  explicit FaultInjector(const FaultOptions& options);
  // A frame without payload is never corrupted.
  FaultDecision Decide(uint32_t payload_bytes);

 private:
  // True with the probability given.
  bool Chance(double probability);
  // How much longer than the simulated round trip one copy takes.
  base::Nanos ExtraDelay();

  const FaultOptions options_;
  std::mt19937_64 random_;
};

}  // namespace specfabric::transport

#endif  // SPECFABRIC_TRANSPORT_FAULTS_H_
