#ifndef SPECFABRIC_TARGET_FIRST_TOKEN_WATCH_H_
#define SPECFABRIC_TARGET_FIRST_TOKEN_WATCH_H_

// How often the first token of a drafter's trees is accepted. One that reads the hidden states of
// the wrong layers drafts on as if nothing were wrong; only this shows it. Pure; leader thread
// only.

#include <cstdint>
#include <optional>

namespace specfabric::target {

class FirstTokenWatch {
 public:
  static constexpr int kRounds = 256;  // the last so many count, and fewer say nothing
  static constexpr double kSuspect = 0.3;

  // A tree of this drafter was verified. True: its acceptance has just fallen below kSuspect, which
  // is told once until it has risen again.
  bool Observe(bool first_accepted);
  // None: too few rounds.
  std::optional<double> acceptance() const;

 private:
  int rounds_ = 0;
  double acceptance_ = 0;
  bool told_ = false;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_FIRST_TOKEN_WATCH_H_
