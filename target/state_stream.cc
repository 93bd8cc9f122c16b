#include "target/state_stream.h"

#include <algorithm>
#include <utility>

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

void StateStream::CollectRows(const scheduler::StepPlan& plan, const scheduler::StepResult& result,
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
}

void StateStream::LeaveOut(PeerId peer, absl::Span<const schemas::StateRun> runs,
                           const StateReaders& readers) {
  for (const schemas::StateRun& run : runs) {
    stats_.dropped += run.count;
    readers.left_out(peer, run.sequence);
  }
}

void StateStream::Prepare(PeerId peer, absl::Span<const Row> rows, const StateReaders& readers,
                          Reader* reader) {
  Outgoing outgoing = {
      .peer = peer, .reader = reader, .described = {.target_incarnation = incarnation_}};
  std::vector<schemas::StateRun>& runs = outgoing.described.runs;
  for (const Row& row : rows) {
    if (!runs.empty() && runs.back().sequence == row.sequence &&
        runs.back().first_position + runs.back().count == row.position) {
      ++runs.back().count;
    } else {
      runs.push_back({row.sequence, row.position, 1});
    }
    outgoing.rows.push_back(row.row);
  }
  absl::StatusOr<transport::Lease> slot = outbox_.slot({incarnation_, reader->sent + 1});
  if (!slot.ok()) return LeaveOut(peer, runs, readers);
  // Counted even if it fails: a part of it may be on its way.
  outgoing.described.number = ++reader->sent;
  outgoing.slot = *std::move(slot);
  outgoing_.push_back(std::move(outgoing));
}

model::StateCopy StateStream::CopyOf(const Outgoing& outgoing) const {
  const transport::SlotPool& pool = *outgoing.slot.pool();
  return {.rows = outgoing.rows,
          .columns = outgoing.reader->columns,
          .to = reinterpret_cast<uint16_t*>(outgoing.slot.data()),
          .on_device = pool.options().kind == transport::MemoryKind::kCuda};
}

bool StateStream::Send(Outgoing* outgoing) {
  const size_t rows = outgoing->rows.size(), columns = outgoing->reader->columns.size();
  const auto bytes = static_cast<uint32_t>(rows * columns * hidden_ * sizeof(uint16_t));
  const absl::Status sent = outbox_.send(outgoing->peer, outgoing->described,
                                         outgoing->reader->pool, std::move(outgoing->slot), bytes);
  if (!sent.ok()) {
    spdlog::debug("target peer={}: hidden states not sent: {}", outgoing->peer,
                  base::Message(sent));
    return false;
  }
  stats_.sent += rows;
  stats_.bytes += bytes;
  return true;
}

void StateStream::Send(const scheduler::StepPlan& plan, const scheduler::StepResult& result,
                       const CopyStates& copy, const StateReaders& readers) {
  CollectRows(plan, result, readers.of);
  for (auto& [peer, reader] : readers_) {
    absl::Span<const Row> left = reader.rows;
    while (!left.empty()) {
      const auto some = left.first(std::min<size_t>(left.size(), reader.slot_rows));
      Prepare(peer, some, readers, &reader);
      left.remove_prefix(some.size());
    }
  }
  if (outgoing_.empty()) return;
  std::vector<model::StateCopy> copies;
  for (const Outgoing& outgoing : outgoing_) copies.push_back(CopyOf(outgoing));
  const absl::Status copied = copy(copies);
  if (!copied.ok()) spdlog::error("hidden states are not copied: {}", base::Message(copied));
  for (Outgoing& outgoing : outgoing_) {
    if (copied.ok() && Send(&outgoing)) continue;
    LeaveOut(outgoing.peer, outgoing.described.runs, readers);
  }
  outgoing_.clear();
}

}  // namespace specfabric::target
