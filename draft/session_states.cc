#include "draft/session_states.h"

#include <algorithm>

namespace specfabric::draft {

void SessionStates::Add(int32_t position, absl::Span<const float> rows, size_t width) {
  if (position > end() || count_ == 0) {
    rows_.clear();
    first_ = position;
    count_ = dropped_ = 0;
    width_ = width;
  }
  rows.remove_prefix(std::min(static_cast<size_t>(end() - position) * width, rows.size()));
  rows_.insert(rows_.end(), rows.begin(), rows.end());
  count_ += static_cast<int32_t>(rows.size() / width);
}

void SessionStates::Truncate(int32_t position) {
  count_ = std::clamp(position - first_, 0, count_);
  rows_.resize(static_cast<size_t>(dropped_ + count_) * width_);
}

// Memory is given back once most of it is of rows that are dropped, so that each row is moved a
// constant number of times.
void SessionStates::DropBefore(int32_t position) {
  const int32_t dropped = std::clamp(position - first_, 0, count_);
  first_ += dropped;
  count_ -= dropped;
  dropped_ += dropped;
  if (dropped_ < count_) return;
  const auto kept = rows_.begin() + static_cast<std::ptrdiff_t>(dropped_ * width_);
  std::vector<float>(kept, rows_.end()).swap(rows_);
  dropped_ = 0;
}

}  // namespace specfabric::draft
