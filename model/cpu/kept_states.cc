#include "model/cpu/kept_states.h"

#include <algorithm>
#include <utility>

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
  if (dtype_ == DataType::kBFloat16) {
    if (rounded_.size() < count) rounded_.resize(count);
  } else if (values_.size() < count) {
    values_.resize(count);
  }
}

void KeptStates::Copy(int32_t boundary, const float* residual) {
  const size_t boundaries = boundaries_.size(), hidden = hidden_;
  for (size_t i = 0; i < boundaries; ++i) {
    if (boundaries_[i] != boundary) continue;
    for (size_t row = 0; row < static_cast<size_t>(rows_); ++row) {
      const float* from = residual + row * hidden;
      const size_t to = (row * boundaries + i) * hidden;
      if (dtype_ == DataType::kBFloat16) {
        kernels_->round_bfloat16(from, hidden_, &rounded_[to]);
      } else {
        std::copy_n(from, hidden, &values_[to]);
      }
    }
  }
}

void KeptStates::Gather(const StateCopy& copy) const {
  uint16_t* to = copy.to;
  for (const int32_t row : copy.rows) {
    for (const int32_t column : copy.columns) {
      const size_t from = (row * boundaries_.size() + column) * hidden_;
      if (dtype_ == DataType::kBFloat16) {
        std::copy_n(&rounded_[from], hidden_, to);
      } else {
        kernels_->round_bfloat16(&values_[from], hidden_, to);
      }
      to += hidden_;
    }
  }
}

absl::Span<const float> KeptStates::values() const {
  if (dtype_ == DataType::kBFloat16) return {};
  return {values_.data(), static_cast<size_t>(rows_) * boundaries_.size() * hidden_};
}

}  // namespace specfabric::model::cpu
