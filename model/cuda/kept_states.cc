#include "model/cuda/kept_states.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace specfabric::model::cuda {

using base::cuda::Device;
using base::cuda::DeviceBuffer;

bool KeptStates::Keeps(int32_t boundary) const {
  return std::find(boundaries_.begin(), boundaries_.end(), boundary) != boundaries_.end();
}

absl::Status KeptStates::Keep(std::vector<int32_t> boundaries, int32_t most_rows) {
  kept_ = DeviceBuffer();  // both may not fit at once
  boundaries_ = std::move(boundaries);
  absl::Status made = Reserve(most_rows);
  if (!made.ok()) boundaries_.clear();
  return made;
}

absl::Status KeptStates::Reserve(int32_t rows) {
  absl::Status reserved = kept_.Reserve(rows * RowBytes());
  if (reserved.ok()) return reserved;
  return absl::Status(reserved.code(), absl::StrCat("hidden states of ", boundaries_.size(),
                                                    " layers: ", reserved.message()));
}

absl::Status KeptStates::EnqueueKeep(const Device& device, int32_t boundary, const float* residual,
                                     int32_t rows) const {
  absl::Status status;
  for (size_t i = 0; i < boundaries_.size(); ++i) {
    if (boundaries_[i] != boundary) continue;
    status.Update(EnqueueKeepState({.residual = residual,
                                    .rows = rows,
                                    .hidden = hidden_,
                                    .columns = static_cast<int32_t>(boundaries_.size()),
                                    .column = static_cast<int32_t>(i),
                                    .kept = kept_.As<uint16_t>()},
                                   device.stream()));
  }
  return status;
}

GatherStatesArgs KeptStates::ArgsOf(const StateCopy& copy, uint16_t* to) const {
  return {.kept = kept_.As<uint16_t>(),
          .kept_columns = static_cast<int32_t>(boundaries_.size()),
          .hidden = hidden_,
          .row_count = static_cast<int32_t>(copy.rows.size()),
          .column_count = static_cast<int32_t>(copy.columns.size()),
          .to = to};
}

// Copies to the host are gathered on the device and then fetched together.
absl::Status KeptStates::Gather(const Device& device, absl::Span<const StateCopy> copies) {
  const auto values = [&](const StateCopy& copy) {
    return copy.on_device ? 0 : copy.rows.size() * copy.columns.size() * hidden_;
  };
  size_t fetched = 0;
  for (const StateCopy& copy : copies) fetched += values(copy);
  const size_t bytes = fetched * sizeof(uint16_t);
  absl::Status status = device.MakeCurrent();
  status.Update(gathered_.Reserve(bytes));
  status.Update(fetched_.Reserve(bytes));
  if (!status.ok()) return status;
  uint16_t* to = gathered_.As<uint16_t>();
  std::vector<GatherStatesArgs> gathers;
  gathers.reserve(copies.size());  // Upload writes to them
  for (const StateCopy& copy : copies) {
    if (copy.rows.empty() || copy.columns.empty()) continue;
    GatherStatesArgs& args = gathers.emplace_back(ArgsOf(copy, copy.on_device ? copy.to : to));
    upload_.Add(copy.rows, &args.rows);
    upload_.Add(copy.columns, &args.columns);
    to += values(copy);
  }
  if (gathers.empty()) return absl::OkStatus();
  if (status = upload_.Copy(device); !status.ok()) return status;
  for (const GatherStatesArgs& args : gathers) {
    status.Update(EnqueueGatherStates(args, device.stream()));
  }
  if (fetched > 0) {
    status.Update(device.ToHost(gathered_.As<void>(), bytes, fetched_.As<void>()));
  }
  // Even after an error: enqueued work still reads the staging buffer.
  status.Update(device.Finish());
  if (!status.ok()) return status;
  const uint16_t* from = fetched_.As<uint16_t>();
  for (const StateCopy& copy : copies) {
    std::copy_n(from, values(copy), copy.to);
    from += values(copy);
  }
  return status;
}

}  // namespace specfabric::model::cuda
