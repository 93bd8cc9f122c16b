#ifndef SPECFABRIC_SCHEDULER_POLICY_GOODPUT_H_
#define SPECFABRIC_SCHEDULER_POLICY_GOODPUT_H_

// What speculation costs and brings in this group at this load, learned from the rounds so far, and
// what follows from it: how large a tree pays, and whether a step that could
// start now had better wait for drafts that are on their way. Everything is one comparison,
// expected tokens a second. Owned by the scheduler; one thread; time is an argument.

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "scheduler/policy/acceptance_estimate.h"
#include "scheduler/policy/reply_time.h"
#include "scheduler/policy/step_time.h"
#include "scheduler/policy/tree_budget.h"
#include "speculation/tree.h"
#include "speculation/verification_method.h"

namespace specfabric::scheduler {

// The tree that a sequence asks for in a round.
struct DraftOrder {
  bool ask = false;
  int32_t max_nodes = 0;  // below the root
  int32_t max_depth = 0;  // levels
  // If cost_limited, the draft decides by these what of the tree pays: the tokens that a second of
  // growing costs a sequence of this group, and what verifying a guess costs at least.
  bool cost_limited = false;
  double cost_per_second = 0, cost_per_row = 0;
  int32_t askers = 1;             // sequences that ask in this round
  base::Nanos latency = 0;        // until its reply is expected, deviation included
  base::Nanos reply_timeout = 0;  // after which the reply counts as a miss; set by the scheduler
  double gain = 0;                // draft tokens accepted, if it comes in time
  double rows = 0;                // draft tokens verified
  double advantage = 1;           // expected tokens a second, to those of going plainly
  int32_t explorer = -1;  // of the askers the one that had better ask for all that a draft can
                          // grow, counted from 0; -1: none
  int32_t probers = 0;    // where asking does not pay: so many do all the same, the first ones
  bool mixed = false;     // every other of them for one level only
};

class GoodputControl {
 public:
  // A step that ran: see StepTime::Observe.
  void OnStep(int32_t rows, int64_t context, base::Nanos time) {
    if (time > 0) step_time_.Observe(rows, context, time);
  }
  const StepTime& step_time() const { return step_time_; }

  // The order of the sequences of this verification method for the coming round. askers: how many
  // they are. step: of all running sequences, without draft tokens. most: nodes of the largest
  // tree.
  DraftOrder Order(speculation::VerificationMethod verification, int32_t askers,
                   const StepBase& step, int32_t most);
  // What a prober asks for, `left` being those that follow it.
  DraftOrder Probe(speculation::VerificationMethod verification, DraftOrder order, int32_t most,
                   int32_t left) const;
  // The same for a tree of all levels.
  DraftOrder Deepest(speculation::VerificationMethod verification, DraftOrder order,
                     int32_t most) const;

  // What came of an order.
  void OnReply(speculation::VerificationMethod verification, const DraftOrder& order,
               const speculation::TokenTree& tree, base::Nanos latency);
  // The reply had not come after `waited`.
  void OnSkipped(speculation::VerificationMethod verification, const DraftOrder& order,
                 base::Nanos waited);
  // Longest that a sequence waits for the reply, before it counts as a miss.
  base::Nanos ReplyTimeout(speculation::VerificationMethod verification,
                           const DraftOrder& order) const;

  // The expected gain of each node (1..) of a tree to a step, [nodes - 1]; also records the gain
  // of trees expected_gain that come for such an order. Where siblings are weighed it is an
  // expectation for each place in draw order, [most], that does not depend on the tree.
  void Evaluate(speculation::VerificationMethod verification, const speculation::Draft& draft,
                const DraftOrder& order, int32_t most, std::vector<float>* expected_gain);
  // The same of what the n-gram lookup guesses as a round begins, which costs no waiting; may be
  // the root alone. Drafts are asked for what they add to it: where both are verified together
  // (Merges) that is what no other guessed too.
  void EvaluateNgramLookup(speculation::VerificationMethod verification,
                           const speculation::Draft& ngram_lookup,
                           std::vector<float>* expected_gain);
  // The same of what was not ordered, where any tree may be trimmed.
  void EvaluateExtra(speculation::VerificationMethod verification, const speculation::Draft& draft,
                     std::vector<float>* expected_gain) const {
    acceptance_.PathChances(verification, draft, expected_gain);
  }
  // What became of a tree that was verified. path: as Accepted's.
  void OnVerified(speculation::VerificationMethod verification, const speculation::Draft& draft,
                  absl::Span<const int32_t> path);

 private:
  static constexpr int kDepths = 16;
  static constexpr int32_t kFirstProbe = 16, kReliableProbe = 128, kLastProbe = 512;
  struct PerMethod {
    ReplyTime reply;
    // Of trees on average, by depth - 1; seen: trees that could have gone that deep.
    std::array<GainHistogram, kDepths> gains = {};
    std::array<int32_t, kDepths> seen = {};
    // Of cost_limited trees all nodes together, and how many trees that are.
    GainHistogram cost_limited_gains = {};
    int32_t cost_limited_seen = 0;
    GainHistogram ngram_lookup = {};  // of the n-gram lookup's guesses, on average
    int32_t ngram_lookup_rounds = 0;  // rounds that `ngram_lookup` is of
    // Levels of the last trees that could have had any number, on average and at most.
    double deepest = kDepths, most_levels = kDepths;
    // Where siblings are weighed: path chance by place in draw order, averaged.
    std::array<float, speculation::kMaxVerifyNodes> by_place = {};
    int32_t placed = 0;          // trees that by_place is of
    int32_t until_explored = 0;  // trees
    int32_t explored = 0;
    // Rounds, where asking does not pay.
    int32_t until_probe = kFirstProbe, probe_interval = kFirstProbe;
    int32_t probes = 0;
    int32_t probe_rounds = 0;  // that the present probe still has
    bool all_probe = false;    // it is by all
    // Since the last round in which asking did not pay: whether it paid, guesses that were
    // verified.
    bool paid = false;
    double expected = 0, accepted = 0;
  };

  static GainHistogram LookedUp(const PerMethod& c, int32_t askers);
  // merges: what comes is verified with what was looked up.
  DraftOrder Best(const PerMethod& c, bool merges, int32_t askers, const StepBase& step,
                  int32_t most) const;
  // The same of trees that grow as far as they pay. Where any tree will do and few wait for theirs,
  // that follows from the text at hand; the trees of many are alike on average, and what counts is
  // that all come at the same time.
  DraftOrder BestCostLimited(const PerMethod& c, int32_t askers, const StepBase& step,
                             int32_t most) const;
  // Whether asking would pay if replies came at once: if not, how long they take tells nothing.
  bool PaysAtOnce(const PerMethod& c, bool merges, int32_t askers, const StepBase& step) const;
  // Asking does not pay in this round: what was tried before it decides how soon to try again.
  void BackOff(speculation::VerificationMethod verification);
  // Whether to go plainly only to know how long that takes.
  bool MeasuresPlain(int32_t rows);
  void SetCosts(double rate, const StepBase& step, int32_t most, DraftOrder* order) const;
  void RecordGains(const speculation::Draft& draft, const DraftOrder& order, PerMethod* c) const;
  // most: rounds that the average is of.
  static void Average(const GainHistogram& now, int32_t most, int32_t* seen,
                      GainHistogram* average);

  StepTime step_time_;
  int32_t unmeasured_ = 0;  // orders since plain steps of that size were last known
  AcceptanceEstimate acceptance_;
  std::array<PerMethod, speculation::kVerificationMethods> by_method_;
  std::vector<float> chances_;  // scratch
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_GOODPUT_H_
