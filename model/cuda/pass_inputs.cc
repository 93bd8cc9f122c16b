#include "model/cuda/pass_inputs.h"

#include <algorithm>
#include <cstring>

namespace specfabric::model::cuda {
namespace {

using base::cuda::Device;

constexpr size_t kAlign = 16;

int32_t PaddedCount(int32_t count) {
  if (count > 64) return (count + 63) / 64 * 64;
  int32_t padded = 1;
  while (padded < count) padded *= 2;
  return padded;
}

// Assigns consecutive offsets.
class Layout {
 public:
  template <typename T>
  size_t Add(size_t count) {
    const size_t place = end_;
    end_ += (count * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    return place;
  }
  size_t end() const { return end_; }

 private:
  size_t end_ = 0;
};

template <typename T>
T* At(std::byte* memory, size_t place) {
  return reinterpret_cast<T*>(memory + place);
}

// Writes [count] rows of `row` elements: first `values`, then repetitions of the first row.
template <typename T>
void FillRows(const std::vector<T>& values, size_t row, size_t count, T* to) {
  std::copy(values.begin(), values.end(), to);
  for (size_t i = values.size() / row; i < count; ++i) std::copy_n(to, row, to + i * row);
}

}  // namespace

PassSize PaddedSize(const PassSize& size) {
  return {PaddedCount(size.rows), PaddedCount(size.logit_rows)};
}

absl::StatusOr<PassInputs> PaddedInputs::Copy(const Device& device, const PassArrays& arrays,
                                              const PassSize& size) {
  const Batch& batch = *arrays.batch;
  const AttentionPlan& plan = arrays.plans->front();
  const size_t rows = size.rows, kept = size.logit_rows, half = arrays.half;
  Layout layout;
  const size_t tokens = layout.Add<base::TokenId>(rows);
  const size_t cosines = layout.Add<float>(rows * half), sines = layout.Add<float>(rows * half);
  const size_t views = layout.Add<RowView>(arrays.plans->size() * rows),
               logit_rows = layout.Add<int32_t>(kept);
  const size_t hidden = batch.states.size() / batch.tokens.size();
  const size_t states = layout.Add<float>(rows * hidden);
  // Last, because their lengths differ between batches of one size. One list, so that its address
  // does not depend on them.
  const size_t lists = layout.Add<int32_t>(plan.slots.size() + plan.extra.size());
  if (layout.end() > std::min(copied_.bytes(), staged_.bytes())) {
    // Grows rarely, since every graph must then be captured again; also if it fails, since the old
    // memory was freed.
    ++moves_;
    absl::Status grown = copied_.Reserve(2 * layout.end());
    grown.Update(staged_.Reserve(2 * layout.end()));
    if (!grown.ok()) return grown;
  }

  std::byte* const host = staged_.As<std::byte>();
  FillRows(batch.tokens, 1, rows, At<base::TokenId>(host, tokens));
  FillRows(*arrays.cosines, half, rows, At<float>(host, cosines));
  FillRows(*arrays.sines, half, rows, At<float>(host, sines));
  FillRows(batch.logit_rows, 1, kept, At<int32_t>(host, logit_rows));
  if (hidden > 0) FillRows(batch.states, hidden, rows, At<float>(host, states));
  RowView* view = At<RowView>(host, views);
  for (const AttentionPlan& of_layers : *arrays.plans) {
    FillRows(of_layers.rows, 1, rows, view);
    for (size_t i = 0; i < rows; ++i, ++view) {
      view->extra_first += static_cast<int32_t>(plan.slots.size());
      if (i >= plan.rows.size()) view->write_slot = -1;
    }
  }
  int32_t* const list = At<int32_t>(host, lists);
  std::copy(plan.extra.begin(), plan.extra.end(),
            std::copy(plan.slots.begin(), plan.slots.end(), list));

  std::byte* const there = copied_.As<std::byte>();
  absl::Status status = device.ToDevice(host, layout.end(), copied_.As<void>());
  if (!status.ok()) return status;
  return PassInputs{.tokens = At<base::TokenId>(there, tokens),
                    .cosines = At<float>(there, cosines),
                    .sines = At<float>(there, sines),
                    .views = At<RowView>(there, views),
                    .slots = At<int32_t>(there, lists),
                    .extra = At<int32_t>(there, lists),
                    .logit_rows = At<int32_t>(there, logit_rows),
                    .states = At<float>(there, states)};
}

}  // namespace specfabric::model::cuda
