#ifndef SPECFABRIC_TARGET_STATE_STREAM_H_
#define SPECFABRIC_TARGET_STATE_STREAM_H_

// Sends the hidden states of committed tokens to the draft workers that read them: of every step
// the rows of prompt chunks, and those of the accepted path of each tree. A tensor goes to each
// worker, or several where it would not fit a slot; what finds no free slot is left out and
// counted, so that a step never waits for a draft. A worker that misses some starts cold after
// them. Leader thread only.

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/hidden_states.h"
#include "scheduler/step_plan.h"
#include "schemas/messages.h"
#include "target/draft_session.h"
#include "transport/slot_pool.h"

namespace specfabric::target {

struct StateOutbox {
  // A slot to send from. ResourceExhausted: none is free.
  std::function<absl::StatusOr<transport::Lease>(const transport::Fence&)> slot;
  std::function<absl::Status(PeerId, const schemas::HiddenStates&, uint8_t pool, transport::Lease,
                             uint32_t bytes)>
      send;
};

// RankModel::CopyStates of the states that the step at hand has kept.
using CopyStates = std::function<absl::Status(absl::Span<const model::StateCopy>)>;

// Who reads the states of a step.
struct StateReaders {
  // The workers that read those of a sequence; none if it is over.
  std::function<std::vector<PeerId>(base::SequenceId)> of;
  // Some that the worker was to get were left out.
  std::function<void(PeerId, base::SequenceId)> left_out;
};

// Since start.
struct StateStreamStats {
  uint64_t sent = 0, bytes = 0;  // positions
  // For want of a slot, because the worker did not take them, or because they could not be copied.
  uint64_t dropped = 0;
};

class StateStream {
 public:
  // hidden: the width of the target's residual stream.
  StateStream(uint64_t incarnation, int32_t hidden, StateOutbox outbox)
      : incarnation_(incarnation), hidden_(hidden), outbox_(std::move(outbox)) {}

  void PeerUp(PeerId peer, const schemas::Hello& hello);
  void PeerDown(PeerId peer);
  // The boundaries that some worker reads, ascending.
  const std::vector<int32_t>& layers() const { return layers_; }

  // After a step that kept its rows' states at layers(): `copy` is called at most once, with copies
  // to slots.
  void Send(const scheduler::StepPlan& plan, const scheduler::StepResult& result,
            const CopyStates& copy, const StateReaders& readers);

  const StateStreamStats& stats() const { return stats_; }

 private:
  // A committed token of the step.
  struct Row {
    base::SequenceId sequence = 0;
    int32_t position = 0;
    int32_t row = 0;  // of the plan
  };
  struct Reader {
    std::vector<int32_t> boundaries;    // in the order of its rows
    std::vector<int32_t> columns = {};  // the same, as indices of layers_
    int32_t slot_rows = 0;              // of a tensor, at most
    uint8_t pool = 0;
    uint32_t sent = 0;           // the number of the last tensor
    std::vector<Row> rows = {};  // scratch: of the step at hand
  };
  // A tensor to fill and send.
  struct Outgoing {
    PeerId peer = 0;
    const Reader* reader = nullptr;
    schemas::HiddenStates described = {};
    std::vector<int32_t> rows = {};  // of the plan
    transport::Lease slot = {};
  };
  void UpdateLayers();
  void CollectRows(const scheduler::StepPlan& plan, const scheduler::StepResult& result,
                   const std::function<std::vector<PeerId>(base::SequenceId)>& readers);
  void LeaveOut(PeerId peer, absl::Span<const schemas::StateRun> runs, const StateReaders& readers);
  // Takes a slot for these rows, at most reader->slot_rows, or leaves them out.
  void Prepare(PeerId peer, absl::Span<const Row> rows, const StateReaders& readers,
               Reader* reader);
  model::StateCopy CopyOf(const Outgoing& outgoing) const;
  // False: the worker did not take it. Its slot is gone all the same.
  bool Send(Outgoing* outgoing);

  const uint64_t incarnation_;
  const int32_t hidden_;
  const StateOutbox outbox_;
  std::map<PeerId, Reader> readers_;
  std::vector<int32_t> layers_;
  std::vector<Outgoing> outgoing_;  // of the step at hand
  StateStreamStats stats_;
};

}  // namespace specfabric::target

#endif  // SPECFABRIC_TARGET_STATE_STREAM_H_
