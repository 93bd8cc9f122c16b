#ifndef SPECFABRIC_SCHEDULER_SIMULATION_MODELLED_DRAFT_H_
#define SPECFABRIC_SCHEDULER_SIMULATION_MODELLED_DRAFT_H_

// A draft worker without a model, for simulation and benchmarks. It grows all requested trees
// together: a pass takes the missing prefix or the frontier of each, and of a drafter that drafts
// in one pass all levels with it. When there is none to grow it drafts ahead, if that is on. The
// results of a pass are available when it ends. Pure: time is an argument, and the owner calls
// EndPass at the time ends().

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "scheduler/scheduler.h"
#include "scheduler/simulation/drafter_kind.h"
#include "scheduler/simulation/modelled_ahead.h"
#include "scheduler/simulation/modelled_text.h"
#include "scheduler/simulation/step_cost.h"
#include "speculation/growth.h"
#include "speculation/pass_time.h"
#include "speculation/tree.h"

namespace specfabric::scheduler {

struct DraftCost {
  base::Nanos round_trip = 0;  // of the network
  base::Nanos weights = 0;  // of one pass (a level of all trees that a worker grows, or a prefill)
  double row_ns = 0;
  speculation::GrowthPolicy tree;
  AheadCost ahead = {};  // not of drafters that read states
  DrafterKind kind = DrafterKind::kModel;
  std::vector<PassTime> measured = {};  // if any, in place of `weights` and `row_ns`
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
  void Forget(uint64_t sequence);
  bool Knows(uint64_t sequence) const { return sessions_.contains(sequence); }
  int32_t sessions() const { return static_cast<int32_t>(sessions_.size()); }

  bool running() const { return ends_ != 0; }  // a pass
  bool idle() const { return waiting_.empty() && jobs_.empty(); }
  bool wants_pass() const { return !idle() || going_ahead_ > 0; }
  base::Nanos ends() const { return ends_; }      // when the running pass ends
  void EndAt(base::Nanos ends) { ends_ = ends; }  // its speed changes
  base::Nanos busy() const { return busy_; }      // time of all passes but those ahead

  // The requested trees that need no further pass, or none that pays. While no pass runs.
  std::vector<Reply> Answer();
  void StartPass(base::Nanos now);
  std::vector<Reply> EndPass();

 private:
  struct Job {
    DraftWanted want;
    uint64_t target = 0;
    int32_t prefix = 0;  // tokens to prefill first
    speculation::TreeGrower grower;
    std::vector<ModelledAhead::Node> places;  // of the first nodes of its tree
  };
  struct Session {
    int32_t known = 0;  // tokens that were prefilled
    ModelledAhead ahead;
    int32_t levels = 1;  // that were asked for
    bool asked = false;
    bool going_ahead = false;  // not asked, and there are nodes to run ahead
  };
  bool goes_ahead() const { return cost_.ahead.nodes > 0 && !ReadsStates(cost_.kind); }
  bool one_pass() const { return DraftsInOnePass(cost_.kind); }
  const ModelledAhead::Node& PlaceOf(int32_t node, Job* job) const;
  void ExpandNode(int32_t node, Job* job) const;
  // Expands the nodes that were run ahead.
  void ExpandKnown(Job* job) const;
  void ExpandFrontier(Job* job) const;
  // Of a drafter that drafts in one pass: the tree as far as it grows.
  void ExpandWhole(Job* job) const;
  void Expand(Job* job);
  void StopUnprofitableGrowth();
  std::vector<Reply> TakeDone();
  // The job's tree is about to be sent: what is to be run ahead below it.
  void PlanAhead(Job* job, Session* session) const;
  void StartAhead(base::Nanos now);
  void Note(bool asked, Session* session);
  base::Nanos TimeOf(int64_t rows) const;

  const DraftCost& cost_;
  const ModelledText& text_;
  std::vector<Job> waiting_, jobs_;
  std::map<uint64_t, speculation::GrowthRound> rounds_;  // by target
  std::map<uint64_t, Session> sessions_;
  int32_t going_ahead_ = 0;                                          // sessions
  std::vector<std::pair<uint64_t, ModelledAhead::Node>> run_ahead_;  // by the running pass
  base::Nanos ends_ = 0;
  // Of the pass that runs, if it grows trees.
  base::Nanos began_ = 0;
  bool reads_prompts_ = false;
  speculation::PassTime pass_time_;
  base::Nanos busy_ = 0;
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_SIMULATION_MODELLED_DRAFT_H_
