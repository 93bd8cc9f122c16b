#include "verification/cuda/draft_row_maker.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "verification/cuda/draft_rows.h"

namespace specfabric::verification::cuda {
namespace {

using base::cuda::LogitMatrix;

absl::Status Check(const RowDraw& draw, int32_t vocabulary) {
  const bool drawn = draw.draw == speculation::SiblingDraw::kWithReplacement ||
                     draw.draw == speculation::SiblingDraw::kWithoutReplacement;
  const bool named = draw.entries == vocabulary ||
                     (draw.entries == draw.top_n && draw.top_n > 0 && draw.top_n < vocabulary);
  if (drawn && named && draw.siblings >= 1 && draw.siblings < speculation::kMaxDraftNodes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      draw.siblings, " siblings drawn as ", speculation::Name(draw.draw), " from the ", draw.top_n,
      " most likely of ", vocabulary, " tokens in a row of ", draw.entries, ": allowed are 1 to ",
      speculation::kMaxDraftNodes - 1,
      ", drawn with or without replacement, in a row of all tokens or the most likely"));
}

}  // namespace

absl::Status DraftRowMaker::Reserve(int32_t vocabulary, int32_t draws) {
  const RoundBatch rows = {.trees = {.sequences = draws}, .nodes = draws, .vocabulary = vocabulary};
  const size_t bytes = draws * sizeof(DrawnRow);
  absl::Status status = device_->MakeCurrent();
  status.Update(workspace_.Reserve(DrawBytes(rows)));
  status.Update(ReserveRowJoins(*device_, draws, vocabulary, &joins_));
  status.Update(found_.Reserve(bytes));
  status.Update(host_found_.Reserve(bytes));
  return status;
}

absl::Status DraftRowMaker::Draw(const LogitMatrix& logits, absl::Span<const RowDraw> draws,
                                 absl::Span<DrawnRow> drawn) {
  if (draws.empty()) return absl::OkStatus();
  begin_ = {0};
  rounds_.clear();
  for (const RowDraw& draw : draws) {
    if (absl::Status sound = Check(draw, logits.size); !sound.ok()) return sound;
    begin_.push_back(static_cast<int32_t>(begin_.size()));
    rounds_.push_back({.sampling = draw.sampling, .first_logit = draw.logit});
  }
  const auto count = static_cast<int32_t>(draws.size());
  DrawBatch batch = {.rows = {.trees = {.sequences = count},
                              .nodes = count,
                              .logits = static_cast<const float*>(logits.logits),
                              .stride = logits.stride,
                              .vocabulary = logits.size,
                              .filtered = std::any_of(
                                  draws.begin(), draws.end(),
                                  [](const RowDraw& draw) { return draw.sampling.filtered(); })},
                     .cut = std::any_of(draws.begin(), draws.end(),
                                        [](const RowDraw& draw) { return draw.top_n > 0; })};
  const size_t bytes = draws.size() * sizeof(DrawnRow);
  absl::Status status = CheckRoundBatch(batch.rows);
  if (!status.ok()) return status;
  status.Update(Reserve(logits.size, count));
  if (!status.ok()) return status;
  upload_.Add(absl::MakeConstSpan(begin_), &batch.rows.trees.begin);
  upload_.Add(absl::MakeConstSpan(rounds_), &batch.rows.rounds);
  upload_.Add(draws, &batch.draws);
  if (status = upload_.Copy(*device_); !status.ok()) return status;
  DrawnRow* const found = found_.As<DrawnRow>();
  status = EnqueueDraws(batch, workspace_.As<void>(), joins_.As<void>(), found, device_->stream());
  status.Update(device_->ToHost(found, bytes, host_found_.As<void>()));
  // Even after an error: enqueued work still reads the staging buffer.
  status.Update(device_->Finish());
  if (!status.ok()) return status;
  std::copy_n(host_found_.As<DrawnRow>(), count, drawn.begin());
  return absl::OkStatus();
}

absl::Status DraftRowMaker::Validate(const uint8_t* rows, int32_t vocabulary, int32_t entries,
                                     absl::Span<sampling::DraftRowFacts> facts) {
  if (facts.empty()) return absl::OkStatus();
  const size_t bytes = facts.size() * sizeof(sampling::DraftRowFacts);
  absl::Status status = device_->MakeCurrent();
  status.Update(found_.Reserve(bytes));
  status.Update(host_found_.Reserve(bytes));
  if (!status.ok()) return status;
  auto* const found = found_.As<sampling::DraftRowFacts>();
  status = EnqueueValidate(rows, static_cast<int32_t>(facts.size()), {vocabulary, entries}, found,
                           device_->stream());
  status.Update(device_->ToHost(found, bytes, host_found_.As<void>()));
  status.Update(device_->Finish());
  if (!status.ok()) return status;
  std::copy_n(host_found_.As<sampling::DraftRowFacts>(), facts.size(), facts.begin());
  return absl::OkStatus();
}

absl::Status DraftRowMaker::Fetch(absl::Span<const uint8_t> device, uint8_t* host) {
  absl::Status status = device_->MakeCurrent();
  status.Update(fetched_.Reserve(device.size()));
  if (!status.ok()) return status;
  status.Update(device_->ToHost(device.data(), device.size(), fetched_.As<void>()));
  status.Update(device_->Finish());
  if (status.ok()) std::memcpy(host, fetched_.As<void>(), device.size());
  return status;
}

}  // namespace specfabric::verification::cuda
