#ifndef SPECFABRIC_SCHEDULER_MODELLED_DRAFT_H_
#define SPECFABRIC_SCHEDULER_MODELLED_DRAFT_H_

// A draft worker without a model, for simulation and benchmarks: it grows the trees it was asked
// for side by side, one pass takes the missing prefix or the frontier of each. What a pass finds is
// known when it ends; how long it takes is for the owner to let pass. Pure: time is an argument.

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "scheduler/modelled_text.h"
#include "scheduler/scheduler.h"
#include "speculation/growth.h"
#include "speculation/tree.h"

namespace specfabric::scheduler {

struct DraftCost {
  base::Nanos round_trip = 0;  // of the network
  base::Nanos weights = 0;     // of one pass (a level of all trees that a worker grows, or prefill)
  double row_ns = 0;
  speculation::GrowthPolicy tree;
};

class ModelledDraft {
 public:
  struct Reply {
    DraftWanted want;
    speculation::TokenTree tree;  // its root's token is 0
  };

  // `cost` and `text` must outlive it.
  ModelledDraft(const DraftCost& cost, const ModelledText& text) : cost_(cost), text_(text) {}

  // want.id: of the text, unique among all targets.
  void Ask(const DraftWanted& want, uint64_t target);
  void Forget(uint64_t sequence) { known_.erase(sequence); }
  bool Knows(uint64_t sequence) const { return known_.contains(sequence); }
  int32_t sessions() const { return static_cast<int32_t>(known_.size()); }

  bool running() const { return ends_ != 0; }
  bool idle() const { return waiting_.empty() && jobs_.empty(); }
  base::Nanos ends() const { return ends_; }  // the pass that runs
  base::Nanos busy() const { return busy_; }  // all passes together

  void StartPass(base::Nanos now);
  std::vector<Reply> EndPass();

 private:
  struct Job {
    DraftWanted want;
    uint64_t target = 0;
    int32_t prefix = 0;  // tokens that it must read first
    speculation::TreeGrower grower;
  };
  void Expand(Job* job) const;
  void StopWhatDoesNotPay();

  const DraftCost& cost_;
  const ModelledText& text_;
  std::vector<Job> waiting_, jobs_;
  std::map<uint64_t, speculation::GrowthRound> rounds_;  // by target
  std::unordered_map<uint64_t, int32_t> known_;          // tokens of each sequence that it has read
  base::Nanos ends_ = 0;
  base::Nanos pass_ = 0;  // that the last pass took
  base::Nanos busy_ = 0;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_MODELLED_DRAFT_H_
