#ifndef SPECFABRIC_DRAFT_SESSION_STATES_H_
#define SPECFABRIC_DRAFT_SESSION_STATES_H_

// The states of consecutive positions of one sequence, fused to the width of the drafter's layers,
// that a drafter has received and may still run. Owned by the session; pure.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace specfabric::draft {

class SessionStates {
 public:
  // Positions [first, end).
  int32_t first() const { return first_; }
  int32_t end() const { return first_ + count_; }
  size_t bytes() const { return rows_.capacity() * sizeof(float); }
  absl::Span<const float> at(int32_t position) const {
    const auto row = static_cast<size_t>(dropped_ + position - first_);
    return absl::MakeConstSpan(rows_).subspan(row * width_, width_);
  }

  // Adds those from `position` on, [count][width]. What is held already is skipped; if positions in
  // between are missing, these begin anew, since a drafter cannot skip any.
  void Add(int32_t position, absl::Span<const float> rows, size_t width);
  // Forgets those from `position` on: they were of another text.
  void Truncate(int32_t position);
  // Forgets those before `position`.
  void DropBefore(int32_t position);

 private:
  int32_t first_ = 0, count_ = 0;
  int32_t dropped_ = 0;  // rows before `first` that are still in memory
  size_t width_ = 0;
  std::vector<float> rows_;
};

}  // namespace specfabric::draft

#endif  // SPECFABRIC_DRAFT_SESSION_STATES_H_
