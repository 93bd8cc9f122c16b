#ifndef SPECFABRIC_SCHEDULER_POLICY_GOODPUT_H_
#define SPECFABRIC_SCHEDULER_POLICY_GOODPUT_H_

// Goodput control: what speculation costs and gains in this group at this load, learned from the
// rounds so far, and what follows from it: how large a tree pays, and what each draft token is
// expected to gain. Every decision is one comparison, of expected tokens a second. Owned by the
// scheduler; DraftOrders asks it for orders, DraftSelection for expected gains, DraftRounds reports
// replies, Pacing and StepPlanner read the step times, StepInFlight reports steps and accepted
// paths. One thread; time is an argument.

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
  // If cost_limited, the drafter grows the tree as far as it pays at these costs: the output tokens
  // that a second of growing costs a sequence of this group, and those that verifying one draft
  // token costs at least.
  bool cost_limited = false;
  double cost_per_second = 0, cost_per_row = 0;
  int32_t askers = 1;             // sequences that ask in this round
  base::Nanos latency = 0;        // until its reply is expected, deviation included
  base::Nanos reply_timeout = 0;  // after which the reply counts as a miss; set by DraftOrders
  double gain = 0;                // expected draft tokens accepted, if the reply comes in time
  double rows = 0;                // expected draft tokens verified
  double advantage = 1;           // expected tokens a second, over those of plain decoding
  int32_t explorer = -1;          // which of the askers, from 0, asks for the largest tree instead,
                                  // to learn what deeper levels gain; -1: none
  int32_t probers = 0;            // where asking does not pay: the first so many ask anyway
  bool mixed = false;             // every other prober asks for one level only
};

class GoodputControl {
 public:
  // A step that ran, see StepTime::Observe.
  void OnStep(int32_t rows, int64_t context, base::Nanos time) {
    if (time > 0) step_time_.Observe(rows, context, time);
  }
  const StepTime& step_time() const { return step_time_; }

  // The order of the `askers` sequences of this verification method that start a round together.
  // step: of all running sequences, without draft tokens. most: nodes of the largest tree.
  DraftOrder Order(speculation::VerificationMethod verification, int32_t askers,
                   const StepBase& step, int32_t most);
  // The order of a prober. left: probers that follow it.
  DraftOrder Probe(speculation::VerificationMethod verification, DraftOrder order, int32_t most,
                   int32_t left) const;
  // `order` for a tree of all levels.
  DraftOrder Deepest(speculation::VerificationMethod verification, DraftOrder order,
                     int32_t most) const;

  // The reply to an order.
  void OnReply(speculation::VerificationMethod verification, const DraftOrder& order,
               const speculation::TokenTree& tree, base::Nanos latency);
  // The reply to an order had not come after `waited`.
  void OnSkipped(speculation::VerificationMethod verification, const DraftOrder& order,
                 base::Nanos waited);
  // How long a sequence waits for the reply before it counts as a miss.
  base::Nanos ReplyTimeout(speculation::VerificationMethod verification,
                           const DraftOrder& order) const;

  // The expected gain of each node (1..) of a drafter's tree: the chance that its whole path is
  // accepted, [nodes - 1]. Also records what trees gain that come for such an order. Where the
  // verification method uses draft probabilities it is an expectation for each place in draw order
  // instead, [most], which does not depend on this tree.
  void Evaluate(speculation::VerificationMethod verification, const speculation::Draft& draft,
                const DraftOrder& order, int32_t most, std::vector<float>* expected_gain);
  // The same for the n-gram lookup's tree as a round begins, which may be the root alone. It costs
  // no waiting. Drafters are asked for what they add to it: where both trees are verified together
  // (Merges), the tokens that the n-gram lookup does not propose.
  void EvaluateNgramLookup(speculation::VerificationMethod verification,
                           const speculation::Draft& ngram_lookup,
                           std::vector<float>* expected_gain);
  // The same for a tree that no order asked for, where any subtree may be verified.
  void EvaluateExtra(speculation::VerificationMethod verification, const speculation::Draft& draft,
                     std::vector<float>* expected_gain) const {
    acceptance_.PathChances(verification, draft, expected_gain);
  }
  // The accepted path of a tree that was verified, as speculation::Accepted::path.
  void OnVerified(speculation::VerificationMethod verification, const speculation::Draft& draft,
                  absl::Span<const int32_t> path);

 private:
  static constexpr int kDepths = 16;
  static constexpr int32_t kFirstProbe = 16, kReliableProbe = 128, kLastProbe = 512;
  struct PerMethod {
    ReplyTime reply;
    // Average gains of a tree's nodes by depth - 1; seen: trees that were asked for that depth.
    std::array<GainHistogram, kDepths> gains = {};
    std::array<int32_t, kDepths> seen = {};
    // Average gains of all nodes of a cost_limited tree, and how many such trees were seen.
    GainHistogram cost_limited_gains = {};
    int32_t cost_limited_seen = 0;
    GainHistogram ngram_lookup = {};  // average gains of the n-gram lookup's draft tokens
    int32_t ngram_lookup_rounds = 0;  // rounds in that average
    // Levels of recent trees that were asked for all levels: the average and the maximum.
    double deepest = kDepths, most_levels = kDepths;
    // Where draft probabilities are used: average chance of the path by place in draw order.
    std::array<float, speculation::kMaxVerifyNodes> by_place = {};
    int32_t placed = 0;          // trees in that average
    int32_t until_explored = 0;  // trees
    int32_t explored = 0;
    // Where asking does not pay, in rounds.
    int32_t until_probe = kFirstProbe, probe_interval = kFirstProbe;
    int32_t probes = 0;
    int32_t probe_rounds = 0;  // left of the current probe
    bool all_probe = false;    // the current probe is by all sequences
    // Since the last round in which asking did not pay: whether it paid in some round, and the
    // draft tokens verified that were expected to be accepted and that were.
    bool paid = false;
    double expected = 0, accepted = 0;
  };

  static GainHistogram NgramLookupGains(const PerMethod& c, int32_t askers);
  // The best order by depth. merges: a drafter's tree is verified together with the n-gram
  // lookup's.
  DraftOrder Best(const PerMethod& c, bool merges, int32_t askers, const StepBase& step,
                  int32_t most) const;
  // The order of trees that grow as far as they pay, for few askers where any subtree may be
  // verified: what pays then depends on the text at hand. The trees of many askers are alike on
  // average, and it matters more that all come at the same time.
  DraftOrder BestCostLimited(const PerMethod& c, int32_t askers, const StepBase& step,
                             int32_t most) const;
  // Whether asking would pay if replies came at once: if not, their latency need not be measured.
  bool PaysAtOnce(const PerMethod& c, bool merges, int32_t askers, const StepBase& step) const;
  // Asking does not pay in this round. What came of earlier rounds decides how soon it is probed.
  void BackOff(speculation::VerificationMethod verification);
  // Whether this round decodes plainly only to measure how long that takes.
  bool MeasuresPlain(int32_t rows);
  void SetCosts(double rate, const StepBase& step, int32_t most, DraftOrder* order) const;
  void RecordGains(const speculation::Draft& draft, const DraftOrder& order, PerMethod* c) const;
  // Adds one round to an average of at most `most` rounds.
  static void Average(const GainHistogram& now, int32_t most, int32_t* seen,
                      GainHistogram* average);

  StepTime step_time_;
  int32_t unmeasured_ = 0;  // orders in a row for which the time of a plain step was not known
  AcceptanceEstimate acceptance_;
  std::array<PerMethod, speculation::kVerificationMethods> by_method_;
  std::vector<float> chances_;  // scratch
};

}  // namespace specfabric::scheduler

#endif  // SPECFABRIC_SCHEDULER_POLICY_GOODPUT_H_
