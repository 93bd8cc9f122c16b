// What is decided of a pass's logits, and of draft weights, where they lie.

#include <cstring>

#include "model/cuda/cuda_transformer.h"

namespace specfabric::model::cuda {

LogitMatrix CudaTransformer::Logits() const {
  return {.logits = logits_.As<void>(),
          .type = DataType::kFloat32,
          .stride = partition_.vocabulary,
          .first = partition_.first_token,
          .size = partition_.vocabulary};
}

absl::Status CudaTransformer::Best(absl::Span<const RowChoice> choices,
                                   absl::Span<sampling::ScoredToken> best) {
  if (choices.empty()) return absl::OkStatus();
  // How to choose, then what was chosen.
  const size_t how_bytes = choices.size() * sizeof(RowChoice);
  const size_t best_bytes = choices.size() * sizeof(PackedChoice);
  static_assert(sizeof(RowChoice) % alignof(PackedChoice) == 0);
  absl::Status status = device_->MakeCurrent();
  status.Update(staged_choices_.Reserve(how_bytes + best_bytes));
  status.Update(choices_.Reserve(how_bytes + best_bytes));
  if (!status.ok()) return status;
  std::byte* const host = staged_choices_.As<std::byte>();
  std::byte* const device = choices_.As<std::byte>();
  std::memcpy(host, choices.data(), how_bytes);
  status.Update(device_->ToDevice(host, how_bytes, device));
  status.Update(EnqueueArgMax(
      Logits(), choices_.As<RowChoice>(), /*filters=*/nullptr, static_cast<int32_t>(choices.size()),
      reinterpret_cast<PackedChoice*>(device + how_bytes), device_->stream()));
  status.Update(device_->ToHost(device + how_bytes, best_bytes, host + how_bytes));
  status.Update(device_->Finish());
  if (!status.ok()) return status;
  const auto* packed = reinterpret_cast<const PackedChoice*>(host + how_bytes);
  for (size_t i = 0; i < choices.size(); ++i) best[i] = Unpack(packed[i]);
  return absl::OkStatus();
}

absl::Status CudaTransformer::Verify(absl::Span<const DeviceTree> trees,
                                     absl::Span<speculation::Accepted> accepted) {
  return verifier_.Verify(*device_, Logits(), trees, accepted);
}

absl::StatusOr<const float*> CudaTransformer::Fetch(absl::Span<const int32_t> rows) {
  const size_t width = partition_.vocabulary, bytes = width * sizeof(float);
  absl::Status status = device_->MakeCurrent();
  status.Update(host_logits_.Reserve(rows.size() * bytes));
  if (!status.ok()) return status;
  for (size_t i = 0, end = 0; i < rows.size(); i = end) {  // a copy for rows that follow each other
    for (end = i + 1; end < rows.size() && rows[end] == rows[end - 1] + 1;) ++end;
    status.Update(device_->ToHost(logits_.As<float>() + rows[i] * width, (end - i) * bytes,
                                  host_logits_.As<float>() + i * width));
  }
  status.Update(device_->Finish());
  if (!status.ok()) return status;
  return host_logits_.As<float>();
}

absl::Status CudaTransformer::Reserve(int32_t draws) {
  return draft_rows_.Reserve(*device_, config_.vocabulary, draws);
}

absl::Status CudaTransformer::Draw(absl::Span<const RowDraw> draws, absl::Span<DrawnRow> drawn) {
  return draft_rows_.Draw(*device_, Logits(), draws, drawn);
}

absl::Status CudaTransformer::Validate(const uint8_t* rows, int32_t vocabulary, int32_t entries,
                                       absl::Span<sampling::DraftRowFacts> facts) {
  return draft_rows_.Validate(*device_, rows, vocabulary, entries, facts);
}

absl::Status CudaTransformer::Fetch(absl::Span<const uint8_t> device, uint8_t* host) {
  absl::Status status = device_->MakeCurrent();
  status.Update(host_draft_rows_.Reserve(device.size()));
  if (!status.ok()) return status;
  status.Update(device_->ToHost(device.data(), device.size(), host_draft_rows_.As<void>()));
  status.Update(device_->Finish());
  if (status.ok()) std::memcpy(host, host_draft_rows_.As<void>(), device.size());
  return status;
}

}  // namespace specfabric::model::cuda
