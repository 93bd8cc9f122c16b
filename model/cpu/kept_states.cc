#include "model/cpu/kept_states.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace specfabric::model::cpu {

absl::Status KeptStates::Keep(std::vector<int32_t> boundaries, int32_t layers) {
  for (int32_t boundary : boundaries) {
    if (boundary >= 0 && boundary <= layers) continue;
    return absl::InvalidArgumentError(absl::StrCat("hidden states at boundary ", boundary, " of ",
                                                   layers, " layers; allowed: 0 to ", layers));
  }
  boundaries_ = std::move(boundaries);
  rows_ = 0;
  return absl::OkStatus();
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

absl::Span<const float> KeptStates::values() const {
  return {values_.data(), static_cast<size_t>(rows_) * boundaries_.size() * hidden_};
}

}  // namespace specfabric::model::cpu
