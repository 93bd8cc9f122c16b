#include "model/cpu/kept_states.h"

#include <algorithm>
#include <utility>

#include "base/bfloat16.h"

namespace specfabric::model::cpu {

void KeptStates::Keep(std::vector<int32_t> boundaries) {
  boundaries_ = std::move(boundaries);
  rows_ = 0;
}

bool KeptStates::Keeps(int32_t boundary) const {
  return std::find(boundaries_.begin(), boundaries_.end(), boundary) != boundaries_.end();
}

void KeptStates::Begin(int rows) {
  rows_ = rows;
  const size_t count = static_cast<size_t>(rows) * boundaries_.size() * hidden_;
  if (values_.size() < count) values_.resize(count);
}

void KeptStates::Copy(int32_t boundary, const float* residual) {
  const size_t boundaries = boundaries_.size(), hidden = hidden_;
  for (size_t i = 0; i < boundaries; ++i) {
    if (boundaries_[i] != boundary) continue;
    for (size_t row = 0; row < static_cast<size_t>(rows_); ++row) {
      std::copy_n(residual + row * hidden, hidden, &values_[(row * boundaries + i) * hidden]);
    }
  }
}

void KeptStates::Gather(const StateCopy& copy) const {
  uint16_t* to = copy.to;
  for (const int32_t row : copy.rows) {
    for (const int32_t column : copy.columns) {
      const float* from = &values_[(row * boundaries_.size() + column) * hidden_];
      to = std::transform(from, from + hidden_, to, base::RoundToBFloat16);
    }
  }
}

absl::Span<const float> KeptStates::values() const {
  return {values_.data(), static_cast<size_t>(rows_) * boundaries_.size() * hidden_};
}

}  // namespace specfabric::model::cpu
