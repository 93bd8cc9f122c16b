#include "target/state_stream.h"

#include <algorithm>
#include <utility>

#include "base/bfloat16.h"
#include "base/status.h"
#include "spdlog/spdlog.h"

namespace specfabric::target {

using scheduler::PlanSequence;

void StateStream::PeerUp(PeerId peer, const schemas::Hello& hello) {
  if (hello.state_layers.empty()) return;
  const size_t row_bytes = hello.state_layers.size() * hidden_ * sizeof(uint16_t);
  Reader reader = {.boundaries = hello.state_layers, .pool = hello.state_pool};
  reader.slot_rows =
      std::min({hello.state_rows, static_cast<int32_t>(schemas::kStateSlotBytes / row_bytes),
                static_cast<int32_t>(schemas::kMaxStateRuns)});
  if (reader.slot_rows == 0) {
    spdlog::warn("draft peer={} model={}: a position's hidden states have {} bytes; at most {} fit",
                 peer, hello.model, row_bytes, schemas::kStateSlotBytes);
    return;
  }
  readers_[peer] = std::move(reader);
  UpdateLayers();
}

void StateStream::PeerDown(PeerId peer) {
  if (readers_.erase(peer) > 0) UpdateLayers();
}

void StateStream::UpdateLayers() {
  layers_.clear();
  for (const auto& [peer, reader] : readers_) {
    layers_.insert(layers_.end(), reader.boundaries.begin(), reader.boundaries.end());
  }
  std::sort(layers_.begin(), layers_.end());
  layers_.erase(std::unique(layers_.begin(), layers_.end()), layers_.end());
  for (auto& [peer, reader] : readers_) {
    reader.columns.clear();
    for (const int32_t boundary : reader.boundaries) {
      const auto at = std::lower_bound(layers_.begin(), layers_.end(), boundary);
      reader.columns.push_back(static_cast<int32_t>(at - layers_.begin()));
    }
  }
}

void StateStream::Send(const scheduler::StepPlan& plan, const scheduler::StepResult& result,
                       absl::Span<const float> states,
                       const std::function<std::vector<PeerId>(base::SequenceId)>& readers) {
  for (auto& [peer, reader] : readers_) reader.rows.clear();
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    const PlanSequence& sequence = plan.sequences[s];
    const std::vector<PeerId> peers = readers(sequence.id);
    const auto add = [&](int32_t row) {
      row += sequence.first_row;
      for (const PeerId peer : peers) {
        const auto reader = readers_.find(peer);
        if (reader == readers_.end()) continue;
        reader->second.rows.push_back({sequence.id, plan.positions[row], row});
      }
    };
    if (sequence.kind == scheduler::RowsKind::kPrefill) {
      for (int32_t row = 0; row < sequence.row_count; ++row) add(row);
    } else {
      add(0);  // the last committed token
      for (const int32_t node : result.sequences[s].accepted.path) add(node);
    }
  }
  for (auto& [peer, reader] : readers_) {
    absl::Span<const Row> left = reader.rows;
    while (!left.empty()) {
      const auto some = left.first(std::min<size_t>(left.size(), reader.slot_rows));
      SendRows(peer, some, states, &reader);
      left.remove_prefix(some.size());
    }
  }
}

void StateStream::SendRows(PeerId peer, absl::Span<const Row> rows, absl::Span<const float> states,
                           Reader* reader) {
  absl::StatusOr<transport::Lease> slot = outbox_.slot({incarnation_, reader->sent + 1});
  if (!slot.ok()) {
    stats_.dropped += rows.size();
    return;
  }
  // Counted even if it fails: a part of it may be on its way.
  schemas::HiddenStates described = {.target_incarnation = incarnation_, .number = ++reader->sent};
  auto* const begin = reinterpret_cast<uint16_t*>(slot->data());
  uint16_t* to = begin;
  for (const Row& row : rows) {
    schemas::StateRun* const run = described.runs.empty() ? nullptr : &described.runs.back();
    if (run != nullptr && run->sequence == row.sequence &&
        run->first_position + run->count == row.position) {
      ++run->count;
    } else {
      described.runs.push_back({row.sequence, row.position, 1});
    }
    for (const int32_t column : reader->columns) {
      const auto from = states.subspan((row.row * layers_.size() + column) * hidden_, hidden_);
      to = std::transform(from.begin(), from.end(), to, base::RoundToBFloat16);
    }
  }
  const auto bytes = static_cast<uint32_t>((to - begin) * sizeof(uint16_t));
  const absl::Status sent = outbox_.send(peer, described, reader->pool, *std::move(slot), bytes);
  if (!sent.ok()) {
    spdlog::debug("target peer={}: hidden states not sent: {}", peer, base::Message(sent));
    stats_.dropped += rows.size();
    return;
  }
  stats_.sent += rows.size();
  stats_.bytes += bytes;
}

}  // namespace specfabric::target
