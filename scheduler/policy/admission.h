#ifndef SPECFABRIC_SCHEDULER_POLICY_ADMISSION_H_
#define SPECFABRIC_SCHEDULER_POLICY_ADMISSION_H_

// Which sequences run. Owns every sequence from Add to End, the queue of those that wait, the
// tenants' shares and the list of those that run; the blocks that it gives them are
// SequenceBlocks'.
//
// A sequence that runs holds the blocks of its prefill from its admission on. When a running
// sequence needs a block and none is available, the last one in queue order is preempted: it gives
// back its blocks and waits again.
//
// Called by Scheduler (Add, Find, Admit, EndWithoutTokens), StepPlanner (MakeRoom) and StepInFlight
// (ChargeOutput, End, EndWithoutTokens).

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/types.h"
#include "scheduler/kv/sequence_blocks.h"
#include "scheduler/policy/tenant_shares.h"
#include "scheduler/policy/wait_queue.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"

namespace specfabric::scheduler {

class Admission {
 public:
  // Both must outlive it.
  Admission(const SchedulerOptions& options, SequenceBlocks* blocks)
      : options_(options), blocks_(blocks) {}

  // As Scheduler::Add.
  absl::Status Add(SequenceRequest request, base::Nanos now);
  // Null if unknown.
  Sequence* Find(base::SequenceId id) const {
    const auto it = sequences_.find(id);
    return it == sequences_.end() ? nullptr : it->second.get();
  }

  // Admits from the queue as many as fit, in its order: a large sequence that is next is not
  // overtaken by small ones.
  void Admit();
  // Admitted sequences, in queue order. Changed by Admit, MakeRoom and End alone.
  const std::vector<Sequence*>& running() const { return running_; }
  int32_t waiting() const { return waiting_.size(); }

  // Gives a running sequence blocks for `slots`, and preempts sequences after it in queue order if
  // it takes that; their ids are appended to `preempted`. False, and nothing changed, if not even
  // that suffices. None of the sequences may be in flight.
  bool MakeRoom(int32_t slots, Sequence* sequence, std::vector<base::SequenceId>* preempted);
  uint64_t preemptions() const { return preemptions_; }

  // So many output tokens of the sequence count as service to its tenant.
  void ChargeOutput(const Sequence& sequence, int64_t tokens) {
    shares_.Charge(sequence.request.tenant, TenantShares::kOutputWeight * tokens);
  }

  // Frees everything of a sequence that is not in flight, and the sequence itself. Appends its
  // SequenceEnded.
  void End(Sequence* sequence, std::vector<Event>* events);
  // The same after a TokensEvent without tokens.
  void EndWithoutTokens(Sequence* sequence, FinishReason reason, std::vector<Event>* events);

  // Ends the process if blocks and their owners, or the tenants' shares, do not balance; slow.
  void Check() const;

 private:
  bool TakePrefillBlocks(Sequence* sequence);
  int32_t BlocksBehind(const Sequence& sequence);
  void Preempt(Sequence* sequence);

  const SchedulerOptions& options_;
  SequenceBlocks* const blocks_;
  std::unordered_map<base::SequenceId, std::unique_ptr<Sequence>> sequences_;
  TenantShares shares_;
  WaitQueue waiting_{&shares_};
  std::vector<Sequence*> running_;
  uint64_t arrivals_ = 0;
  uint64_t preemptions_ = 0;
  // The next sequence of the queue if it did not fit last time, and the blocks that were available:
  // it is not tried again before there are more.
  base::SequenceId refused_ = 0;
  int32_t refused_available_ = -1;
  std::vector<int32_t> owners_behind_;  // scratch of BlocksBehind: [blocks], 0 between calls
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_ADMISSION_H_
