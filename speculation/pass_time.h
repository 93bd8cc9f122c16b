#ifndef SPECFABRIC_SPECULATION_PASS_TIME_H_
#define SPECFABRIC_SPECULATION_PASS_TIME_H_

// What a pass of a drafter takes, learned from those so far. Pure; owned by the draft worker.

#include "base/clock.h"

namespace specfabric::speculation {

class PassTime {
 public:
  // A pass that read no prompt.
  void Note(base::Nanos pass) {
    if (time_ == 0) {
      time_ = pass;
    } else {
      time_ += pass > time_ ? time_ / 16 : -time_ / 8;
    }
  }
  // About the lower third of passes, so that one that was held up says little; 0: not known.
  double seconds() const { return base::ToSeconds(time_); }

 private:
  base::Nanos time_ = 0;
};

}  // namespace specfabric::speculation

#endif  // SPECFABRIC_SPECULATION_PASS_TIME_H_
